"""Temporary credentials of S3, from the operation AssumeRole of a security token service (STS).

The policy of a session (https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies.html#policies_session) limits
the credentials to the prefixes of one table. They allow what both the role and the policy allow.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from polaris_spark.errors import ForbiddenError, MissingLibraryError, TryAgainError, UnsupportedOperationError
from polaris_spark.storage.prefixes import Prefix
from polaris_spark.storage.settings import Storage

if TYPE_CHECKING:
    from botocore.client import BaseClient

log = logging.getLogger("polaris_spark")

Rights = Literal["read", "write"]
"""`write` includes `read`."""

_READS: Final = ["s3:GetObject"]
_WRITES: Final = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
_LONGEST_POLICY: Final = 2_048
"""Maximum length of a session policy, in characters, from the reference of AssumeRole."""
_LONGEST_NAME: Final = 64
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_+=,.@-]")
_WILDCARDS: Final = re.compile(r"[*?$]")
_KEPT: Final = 1_024
_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 10
_AGAIN: Final = frozenset(
    (
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "InternalFailure",
        "InternalError",
    )
)


class Credentials(NamedTuple):
    """Temporary credentials."""

    access_key: str
    secret_key: str
    token: str
    begun_at: int
    """When they were requested, in milliseconds since 1970."""
    expires_at: int
    """When they expire, in milliseconds since 1970."""

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, ***, expires_at={self.expires_at})"

    def is_fresh(self, now_ms: int) -> bool:
        """Whether the credentials are still valid for at least a quarter of their lifetime."""
        return (self.expires_at - now_ms) * 4 >= self.expires_at - self.begun_at


def policy_of(prefixes: Sequence[Prefix], rights: Rights, partition: str) -> str:
    """Return the session policy that allows nothing but access to prefixes.

    Args:
        partition: partition of the ARNs, such as `aws`.
    Raises:
        UnsupportedOperationError: the policy would be too long.
    """
    actions = [*_READS, *_WRITES] if rights == "write" else _READS
    buckets = sorted({one.bucket for one in prefixes})
    objects = [f"arn:{partition}:s3:::{one.bucket}/{_literal(one.key)}/*" for one in prefixes]
    statements: list[dict[str, Any]] = [{"Effect": "Allow", "Action": actions, "Resource": objects}]
    for bucket in buckets:
        below = [f"{_literal(one.key)}/*" for one in prefixes if one.bucket == bucket]
        arn = f"arn:{partition}:s3:::{bucket}"
        listed = {"StringLike": {"s3:prefix": below}}
        statements.append(
            {"Effect": "Allow", "Action": "s3:ListBucket", "Resource": arn, "Condition": listed}
        )
        statements.append({"Effect": "Allow", "Action": "s3:GetBucketLocation", "Resource": arn})
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
    if len(policy) > _LONGEST_POLICY:
        raise UnsupportedOperationError(
            f"no credentials are handed out for this table: its locations need a session policy of {len(policy)} "
            f"characters, and the maximum is {_LONGEST_POLICY}; use shorter locations"
        )
    return policy


def _literal(text: str) -> str:
    """Escape a text for a policy, so that the policy matches only this text. For example, a star becomes `${*}`."""
    return _WILDCARDS.sub(lambda found: f"${{{found[0]}}}", text)


def session_name(principal: str) -> str:
    """Return the name that a session gets in the logs of AWS. The name contains the principal."""
    return _NOT_IN_NAMES.sub("_", f"polaris-{principal}")[:_LONGEST_NAME]


class CredentialVendor:
    """Issues temporary credentials, and reuses them for later requests until a quarter of their lifetime is left.
    Thread-safe."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """
        Args:
            now_ms: returns the time in milliseconds since 1970.
        """
        self._now_ms = now_ms
        self._known: OrderedDict[tuple[object, ...], Future[Credentials]] = OrderedDict()
        self._services: dict[Storage, BaseClient] = {}
        self._guard = threading.Lock()

    def credentials(
        self, storage: Storage, role: str, prefixes: Sequence[Prefix], rights: Rights, principal: str
    ) -> Credentials:
        """Return credentials for prefixes.

        Raises:
            UnsupportedOperationError: the policy would be too long.
            ForbiddenError: the service refuses.
            TryAgainError: the service cannot be reached.
        """
        key = (storage, role, tuple(prefixes), rights, principal)
        mine: Future[Credentials] | None = None
        with self._guard:
            found = self._known.get(key)
            if found is None or (found.done() and not found.result().is_fresh(self._now_ms())):
                mine = found = self._known[key] = Future()
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
        if mine is None:
            return found.result()
        try:
            made = self._assume(storage, role, prefixes, rights, principal)
        except BaseException as error:
            with self._guard:
                if self._known.get(key) is mine:
                    del self._known[key]
            mine.set_exception(error)
            raise
        mine.set_result(made)
        return made

    def _assume(
        self, storage: Storage, role: str, prefixes: Sequence[Prefix], rights: Rights, principal: str
    ) -> Credentials:
        from botocore.exceptions import BotoCoreError, ClientError

        policy = policy_of(prefixes, rights, role.split(":")[1])
        asked: dict[str, Any] = {
            "RoleArn": role,
            "RoleSessionName": session_name(principal),
            "Policy": policy,
            "DurationSeconds": storage.duration_seconds,
        }
        if storage.external_id is not None:
            asked["ExternalId"] = storage.external_id
        begun = self._now_ms()
        try:
            given = self._service(storage).assume_role(**asked)["Credentials"]
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            log.warning("the role %s cannot be assumed: %s", role, error)
            if code in _AGAIN or status >= 500:
                raise TryAgainError(
                    "the service that issues storage credentials (STS) is not available; try again later, or see the "
                    "server's log for the reason"
                ) from error
            raise ForbiddenError(
                "the service that issues storage credentials (STS) has refused; see the server's log for the reason"
            ) from error
        except BotoCoreError as error:
            log.warning("the service that issues credentials cannot be used: %s", error)
            raise TryAgainError(
                "the service that issues storage credentials (STS) cannot be reached; try again later, or see the "
                "server's log for the reason"
            ) from error
        expires = int(given["Expiration"].timestamp() * 1_000)
        return Credentials(
            given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"], begun, expires
        )

    def _service(self, storage: Storage) -> Any:
        with self._guard:
            if storage not in self._services:
                from botocore.config import Config

                bounds = Config(
                    connect_timeout=_CONNECT_SECONDS,
                    read_timeout=_READ_SECONDS,
                    retries={"total_max_attempts": 2, "mode": "standard"},
                )
                self._services[storage] = own_session(storage).client(
                    "sts", region_name=storage.region, endpoint_url=storage.sts_endpoint, config=bounds
                )
            return self._services[storage]


def own_session(storage: Storage) -> Any:
    """Return a `boto3.Session` with the server's own credentials.

    Raises:
        MissingLibraryError: boto3 is not installed.
    """
    require_boto3()
    import boto3

    return boto3.Session(region_name=storage.region, **storage.keys())


def require_boto3() -> None:
    """Check that boto3 is installed.

    Raises:
        MissingLibraryError: boto3 is not installed.
    """
    try:
        import boto3  # noqa: F401  # only whether it can be imported
    except ImportError as error:
        raise MissingLibraryError(
            "credentials of S3 need boto3, which is not installed: pip install 'polaris-spark[s3]'"
        ) from error
