"""Settings for the storage of tables, which the command `polaris-spark serve` reads from the file of its option
`--storages`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from polaris_spark.catalog.files.locations import is_below_any, segments
from polaris_spark.errors import BadRequestError, InputError
from polaris_spark.property_values import duration_ms, role_arn
from polaris_spark.secret_options import REFERENCE
from polaris_spark.storage.prefixes import Prefix
from polaris_spark.store_uris import Secret

_REGION: Final = re.compile(r"[a-z0-9-]{1,40}")
_LEAST_SECONDS: Final = 900
_MOST_SECONDS: Final = 43_200


class Storage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """Settings for the tables below some locations."""

    locations: tuple[str, ...]
    """Credentials are handed out only for tables below these locations."""
    region: str
    """Region of the buckets."""
    endpoint: str | None = None
    """URL of the S3 service; None for AWS."""
    path_style_access: bool = False
    """Whether the bucket is the first part of the path of a request, instead of a part of the host name."""
    role_arn: str | None = None
    """Role that the server assumes to get temporary credentials; None if it hands out none."""
    catalog_role_arns: tuple[str, ...] = ()
    """Other roles, which the property `storage.role-arn` of a catalog may choose."""
    external_id: str | None = None
    """External id with which the role is assumed."""
    sts_endpoint: str | None = None
    """URL of the service that issues temporary credentials (STS); None for the endpoint of AWS in the region."""
    duration: str = "1 h"
    """Time for which temporary credentials are valid."""
    remote_signing: bool = False
    """Whether the server signs requests of clients."""
    access_key_id: str | None = None
    """The server's access key, as `env:NAME`; None if boto3 finds the server's credentials."""
    secret_access_key: str | None = None
    session_token: str | None = None

    @property
    def duration_seconds(self) -> int:
        """`duration` in seconds."""
        return duration_ms("duration", self.duration) // 1_000

    @property
    def url(self) -> SplitResult | None:
        """The parsed endpoint."""
        return None if self.endpoint is None else urlsplit(self.endpoint)

    def keys(self) -> dict[str, str]:
        """Return the server's own keys as arguments for `boto3.Session`; empty if boto3 finds them.

        Raises:
            InputError: an environment variable is not set.
        """
        given = {
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
        }
        return {name: Secret(text).reveal() for name, text in given.items() if text is not None}

    def check(self) -> None:
        """Check the settings.

        Raises:
            InputError: a setting cannot be used.
        """
        if not self.locations:
            raise InputError("the storage has no locations; give at least one, such as s3://bucket/path")
        for location in self.locations:
            try:
                root = segments(location)[0]
            except BadRequestError as error:
                raise InputError(str(error)) from None
            if not root.startswith("s3://"):
                raise InputError(f"the location {location!r} is not on S3 (s3://bucket/path)")
        if not _REGION.fullmatch(self.region):
            raise InputError(f"the region {self.region!r} is not valid; use one such as eu-central-1")
        if self.role_arn is None and not self.remote_signing:
            raise InputError(
                "the storage has no role-arn and no remote-signing, so there is nothing to hand out; set one of them"
            )
        if self.role_arn is None and self.catalog_role_arns:
            raise InputError("the storage has catalog-role-arns without a role-arn; set role-arn, too")
        for role in (self.role_arn, *self.catalog_role_arns):
            if role is not None:
                role_arn("a role", role)
        if not _LEAST_SECONDS <= self.duration_seconds <= _MOST_SECONDS:
            raise InputError(f"the duration is {self.duration!r}; it must be from 15 minutes to 12 hours")
        _check_url("endpoint", self.endpoint)
        _check_url("sts-endpoint", self.sts_endpoint)
        host = "" if self.url is None else self.url.hostname or ""
        if _is_address(host) and not self.path_style_access:
            raise InputError(
                f"the endpoint {self.endpoint!r} has an IP address, so it needs path-style-access"
            )
        self._check_keys()

    def _check_keys(self) -> None:
        given = {
            "access-key-id": self.access_key_id,
            "secret-access-key": self.secret_access_key,
            "session-token": self.session_token,
        }
        for name, text in given.items():
            if text is not None and not text.startswith(REFERENCE):
                raise InputError(
                    f"{name} must be env:NAME, the name of an environment variable, not the key itself"
                )
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise InputError(
                "the storage has only one of access-key-id and secret-access-key; set both or neither"
            )
        if self.session_token is not None and self.access_key_id is None:
            raise InputError(
                "the storage has a session-token without an access-key-id; set access-key-id and secret-access-key, too"
            )
        self.keys()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _check_url(name: str, text: str | None) -> None:
    if text is None:
        return
    url = urlsplit(text)
    plain = text.isascii() and text.isprintable() and " " not in text and text == text.lower()
    if not plain or url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
        raise InputError(f"the {name} {text!r} is not a URL such as https://s3.example.com, in lower case")
    if url.path.strip("/") or url.query or url.fragment:
        raise InputError(f"the {name} {text!r} must not have a path")


class Storages:
    """All storages of a server."""

    def __init__(self, storages: Iterable[Storage]) -> None:
        self._storages = [(segments(location), one) for one in storages for location in one.locations]
        self._storages.sort(key=lambda pair: -len(pair[0]))

    def of(self, prefixes: Iterable[Prefix]) -> Storage | None:
        """Return the storage with the longest location that contains all prefixes; None if there is none."""
        wanted = [segments(one.location) for one in prefixes]
        for location, storage in self._storages:
            if all(is_below_any(one, [location]) for one in wanted):
                return storage
        return None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    storages: list[Storage]


def storages_in(path: Path) -> Storages:
    """Return the storages that a file describes: JSON, `{"storages": [{"locations": ["s3://..."], ...}, ...]}`.

    Raises:
        InputError: the file is not in this form, or a setting cannot be used.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File).storages
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"the file {path} given by --storages cannot be read: {error}") from None
    seen: set[tuple[str, ...]] = set()
    for one in found:
        try:
            one.check()
            for location in one.locations:
                place = segments(location)
                if place in seen:
                    raise InputError(f"the location {location!r} is given twice; give it only once")
                seen.add(place)
        except InputError as error:
            raise InputError(f"a storage in {path} cannot be used: {error}") from None
    return Storages(found)
