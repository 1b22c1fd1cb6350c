"""The authorizer that asks a server of Open Policy Agent (OPA) by its data API.

The input has the form of Apache Polaris' authorizer for OPA, and `action` is the needed privilege. A policy answers
with `allow`, and for questions about several targets with `allowed`, the set of the positions of the allowed ones.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec
import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from polaris_spark.access.authorizers import AuthorizerError, Question, Securable
from polaris_spark.errors import InputError
from polaris_spark.property_values import is_loopback
from polaris_spark.store_uris import Secret

_MAX_BYTES: Final = 2**20
"""Maximum size of an answer, in bytes."""
_CONNECTIONS: Final = 64
"""Maximum number of connections that stay open between calls."""
_CALLS: Final = 256
"""Maximum number of simultaneous calls. A call that took too long counts until its connection ends."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab", kw_only=True):
    """Settings for an OPA server."""

    url: str
    """URL of the server, such as `https://opa.example.com`. Only servers on this machine can be used without TLS."""
    path: str
    """Path of the policy's package, such as `polaris/authz` for `package polaris.authz`."""
    token: str | None = None
    """Bearer token, or `env:NAME`, where NAME is an environment variable that contains it."""
    token_file: str | None = None
    """File with the bearer token, which is read at each call."""
    ca_file: str | None = None
    """File with the certificates of trusted authorities, in PEM; by default, those of `requests`."""


def opa_authorizer(settings: dict[str, Any]) -> OpaAuthorizer:
    """Return the authorizer of type `opa`.

    Raises:
        InputError: a setting cannot be used.
    """
    try:
        return OpaAuthorizer(msgspec.convert(settings, Settings))
    except msgspec.ValidationError as error:
        raise InputError(f"its settings cannot be used: {error}") from None


class OpaAuthorizer:
    """Asks a server of Open Policy Agent. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            InputError: a setting cannot be used.
        """
        parts = urlsplit(settings.url)
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise InputError("url must not have a user, a query or a fragment")
        is_local = is_loopback(parts.hostname or "")
        if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and is_local)):
            raise InputError(
                f"url is {settings.url!r}; it must be an https:// URL, or an http:// URL of this machine"
            )
        if settings.token is not None and settings.token_file is not None:
            raise InputError("token and token-file are both set; set only one of them")
        if settings.ca_file is not None and not Path(settings.ca_file).is_file():
            raise InputError(f"ca-file is {settings.ca_file!r}, which is not a file")
        self._url = f"{settings.url.rstrip('/')}/v1/data/{quote(settings.path.strip('/'))}"
        self._token = None if settings.token is None else Secret(settings.token)
        if self._token is not None:
            _checked(self._token.reveal())  # refuse a missing variable now
        self._token_file = None if settings.token_file is None else Path(settings.token_file)
        self._session = requests.Session()
        self._session.trust_env = False  # a netrc file would replace the token
        self._session.verify = settings.ca_file or True
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
        self._free = threading.BoundedSemaphore(_CALLS)

    def decide(self, question: Question, timeout_seconds: float) -> list[bool]:
        """Return for each securable of a question whether the principal has the privilege on it.

        Raises:
            AuthorizerError: the server made no decision.
        """
        until = time.monotonic() + timeout_seconds
        result = self._within(
            timeout_seconds, lambda: self._result(input_of(question), until, timeout_seconds)
        )
        count = len(question.securables)
        if count == 1:
            allow = result.get("allow", False)  # undefined if no rule allows it
            if not isinstance(allow, bool):
                raise AuthorizerError(
                    f"OPA's response has 'allow' of type {type(allow).__name__}; the policy must set it to true or "
                    "false"
                )
            return [allow]
        allowed = result.get("allowed")
        if not isinstance(allowed, list) or not all(type(one) is int and 0 <= one < count for one in allowed):
            raise AuthorizerError(
                "OPA's response about several targets must contain 'allowed', the set of the positions of the allowed "
                "targets"
            )
        found = frozenset(allowed)
        return [position in found for position in range(count)]

    def _within(self, timeout: float, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a call. Wait at most the timeout, even if the server sends its headers byte by byte: the
        timeout of `requests` begins again at each byte. The thread of such a call goes on until the connection ends.
        If `_CALLS` calls are in progress, raise an error at once."""
        if not self._free.acquire(blocking=False):
            raise AuthorizerError(f"{_CALLS} calls to OPA are in progress, the maximum")
        done: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()

        def run() -> None:
            try:
                done.set_result(call())
            except BaseException as error:  # the caller raises it
                done.set_exception(error)
            finally:
                self._free.release()

        try:
            threading.Thread(target=run, name="polaris-spark-opa", daemon=True).start()
        except BaseException:
            self._free.release()
            raise
        try:
            return done.result(timeout)
        except concurrent.futures.TimeoutError:
            raise AuthorizerError(f"OPA needed more than {timeout:g} s") from None

    def _result(self, asked: dict[str, Any], until: float, timeout: float) -> dict[str, Any]:
        try:
            with self._session.post(
                self._url,
                json={"input": asked},
                headers=self._headers(),
                timeout=timeout,
                stream=True,
                allow_redirects=False,
            ) as answer:
                if answer.status_code != 200:
                    raise AuthorizerError(f"OPA responded with the status {answer.status_code}")
                body = bytearray()
                while chunk := answer.raw.read1(2**16, decode_content=False):
                    body += chunk
                    if len(body) > _MAX_BYTES:
                        raise AuthorizerError(f"OPA's response is larger than {_MAX_BYTES} bytes")
                    if time.monotonic() > until:
                        raise AuthorizerError(f"OPA needed more than {timeout:g} s")
            found = json.loads(body)
        except requests.Timeout:
            raise AuthorizerError(f"OPA needed more than {timeout:g} s") from None
        except (requests.RequestException, HTTPError) as error:
            raise AuthorizerError(f"OPA cannot be reached ({type(error).__name__})") from error
        except (ValueError, RecursionError):
            raise AuthorizerError("OPA's response is not JSON") from None
        result = found.get("result") if isinstance(found, dict) else None
        if not isinstance(result, dict):
            raise AuthorizerError(
                "OPA's response has no object 'result'; set path to the path of the policy's package"
            )
        return result

    def _headers(self) -> dict[str, str]:
        token = None if self._token is None else self._token.reveal()
        if self._token_file is not None:
            try:
                token = _checked(self._token_file.read_text(encoding="ascii").strip())
            except InputError as error:
                raise AuthorizerError(f"the token file {self._token_file}: {error}") from None
            except (OSError, UnicodeDecodeError):
                raise AuthorizerError(f"the token file {self._token_file} cannot be read") from None
        # Without an encoding, an answer of a few bytes cannot become a large one.
        plain = {"Accept-Encoding": "identity"}
        return plain if token is None else {**plain, "Authorization": f"Bearer {token}"}


def _checked(token: str) -> str:
    """Check that an HTTP header can contain a token, and return the token. For any other token, `requests` would raise
    an error that contains the token, and the token would get into the log.

    Raises:
        InputError: the token is empty, or contains characters other than printable ASCII.
    """
    if not token or not all("!" <= one <= "~" for one in token):
        raise InputError(
            "the token for OPA is empty, or has blanks or other characters that a header cannot contain"
        )
    return token


def input_of(question: Question) -> dict[str, Any]:
    """Return a question as the input of a policy."""
    return {
        "actor": {"principal": question.principal, "roles": list(question.roles)},
        "action": question.privilege,
        "resource": {
            "targets": [_target(question.realm, one) for one in question.securables],
            "secondaries": [],
        },
        "context": {"request_id": str(uuid.uuid4()), "realm": question.realm},
    }


def _target(realm: str, one: Securable) -> dict[str, Any]:
    path = [("NAMESPACE", level) for level in one.namespace]
    if one.kind in ("table", "view"):
        path.append(("TABLE_LIKE", one.name))
    elif one.kind == "branch":
        path.append(("BRANCH", one.branch))
    if one.kind == "realm":
        path.append(("ROOT", realm))
    else:
        path.insert(0, ("CATALOG", one.catalog))
    *parents, (kind, name) = path
    return {
        "type": kind,
        "name": name,
        "parents": [{"type": kind, "name": name} for kind, name in parents],
        "kind": one.kind.upper(),
        **({"branch": one.branch} if one.branch else {}),
    }
