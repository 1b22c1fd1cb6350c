"""Signatures of single requests to S3 (remote signing).

A request is signed only if it is one of the operations that Iceberg's clients need, and if everything that it names is
in the prefixes of one table. Everything that is not known is refused. The text of the request is checked as it will be
sent, and the signature covers this text: method, host, path, query, and the headers whose names begin with `x-amz-`. S3
refuses a request with such a header that the signature does not cover.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from polaris_spark.errors import BadRequestError, ForbiddenError
from polaris_spark.storage.prefixes import Prefix
from polaris_spark.storage.settings import Storage

_PRINTABLE: Final = re.compile(r"[!-\[\]-~]+")
"""Visible ASCII characters without the backslash."""
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_UNSIGNED: Final = "UNSIGNED-PAYLOAD"
_HASHES: Final = (_UNSIGNED, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
"""Values that are accepted in place of the hash of a body. Other values need a signature of each chunk of the body."""
_PORTS: Final = {"http": ":80", "https": ":443"}
_MOST_HEADERS: Final = 100
_MOST_KEYS: Final = 1_000
_HASH: Final = "x-amz-content-sha256"

_HEADERS: Final = frozenset(
    f"x-amz-{name}"
    for name in (
        "checksum-mode", "checksum-type", "content-sha256", "date", "decoded-content-length", "expected-bucket-owner",
        "mp-object-size", "request-payer", "sdk-checksum-algorithm", "server-side-encryption",
        "server-side-encryption-aws-kms-key-id", "server-side-encryption-bucket-key-enabled",
        "server-side-encryption-context", "server-side-encryption-customer-algorithm",
        "server-side-encryption-customer-key", "server-side-encryption-customer-key-md5", "storage-class", "te",
        "trailer", "user-agent",
    )
)  # fmt: skip  # reads better as one table
"""Headers that a request may have although their names begin with `x-amz-`. All others are refused: some of them copy
from another object, change who may read an object, or lock it."""
_HEADER_PREFIXES: Final = ("x-amz-checksum-", "x-amz-meta-")

_LIST: Final = frozenset(
    (
        "list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "marker", "encoding-type",
        "fetch-owner",
    )
)  # fmt: skip  # reads better as one table
_SDK: Final = frozenset(("x-id",))
"""Parameters that SDKs add, and that S3 ignores."""


class SignRequest(NamedTuple):
    """A request that a client wants to send to S3."""

    method: str
    uri: str
    region: str
    headers: Mapping[str, Sequence[str]]
    body: str | None = None
    """The body, if the request deletes several objects."""


class Operation(NamedTuple):
    """The operation that a request asks for."""

    changes: bool
    """Whether it changes something."""
    body_hash: str | None = None
    """SHA-256 of the body, in hexadecimal digits; None if the body does not matter."""


def reads_only(method: str) -> bool:
    """Whether requests of an HTTP method change nothing."""
    return method in ("GET", "HEAD")


def checked(request: SignRequest, storage: Storage, prefixes: Sequence[Prefix]) -> Operation:
    """Check a request, and return its operation.

    Args:
        prefixes: the prefixes of the table.
    Raises:
        BadRequestError: the request is malformed.
        ForbiddenError: this server does not sign such a request; the message says why.
    """
    if request.region != storage.region:
        raise BadRequestError(
            f"the request is for the region {request.region[:40]!r}, but the table is in {storage.region!r}"
        )
    headers = _checked_headers(request)
    if not _PRINTABLE.fullmatch(request.uri) or _NO_ESCAPE.search(request.uri) or "#" in request.uri:
        raise BadRequestError(
            "the URI of the request has a fragment, a wrong percent escape, or a character that must be "
            "percent-encoded"
        )
    uri = urlsplit(request.uri)
    netloc = uri.netloc.lower().removesuffix(_PORTS.get(uri.scheme, "/"))
    if any(
        one.lower().removesuffix(_PORTS.get(uri.scheme, "/")) != netloc for one in headers.get("host", ())
    ):
        raise ForbiddenError("the header Host and the URI of the request name different hosts")
    bucket, key = _target(storage, prefixes, uri.scheme, netloc, uri.path)
    query = _query(uri.query)
    operation = _operation(request, bucket, key, query, prefixes)
    if operation is None:
        raise ForbiddenError(
            f"this server does not sign {request.method} requests with the query parameters {sorted(query)} for tables"
        )
    return operation


def _checked_headers(request: SignRequest) -> dict[str, Sequence[str]]:
    """Return the headers by name in lower case."""
    found: dict[str, Sequence[str]] = {}
    if len(request.headers) > _MOST_HEADERS:
        raise BadRequestError(
            f"the request has {len(request.headers)} headers; the maximum is {_MOST_HEADERS}"
        )
    for given, values in request.headers.items():
        name = given.lower()
        if name in found:
            raise BadRequestError(f"the request has the header {name[:80]!r} twice")
        if not all(value.isprintable() for value in (name, *values)):
            raise BadRequestError(
                f"the header {name[:80]!r} contains characters that cannot be printed; remove them from its name "
                "and value"
            )
        known = name in _HEADERS or name.startswith(_HEADER_PREFIXES)
        if name == "authorization" or (name.startswith("x-amz-") and not known):
            raise ForbiddenError(
                f"this server does not sign requests with the header {name[:80]!r}; leave the header out"
            )
        found[name] = values
    return found


def _hosts(storage: Storage, bucket: str) -> dict[str, str]:
    """Return the host names with which a URI can name a bucket. For each, return the path with which the URIs of the
    bucket's objects begin."""
    url = storage.url
    if url is not None:
        netloc = url.netloc.removesuffix(_PORTS[url.scheme])
        return {netloc: f"/{bucket}"} if storage.path_style_access else {f"{bucket}.{netloc}": ""}
    suffix = "amazonaws.com.cn" if storage.region.startswith("cn-") else "amazonaws.com"
    services = (f"s3.{storage.region}.{suffix}", f"s3.{suffix}")
    return {
        **dict.fromkeys(services, f"/{bucket}"),
        **{f"{bucket}.{one}": "" for one in services},
    }


def _target(
    storage: Storage, prefixes: Sequence[Prefix], scheme: str, netloc: str, path: str
) -> tuple[str, str]:
    """Return the bucket and the key that a URI names. The key is empty for the bucket itself."""
    url = storage.url
    if scheme == ("https" if url is None else url.scheme):
        for bucket in dict.fromkeys(one.bucket for one in prefixes):
            base = _hosts(storage, bucket).get(netloc)
            if base is not None and (path == base or path.startswith(f"{base}/")):
                return bucket, _unescaped(path[len(base) + 1 :])
    raise ForbiddenError(
        "the URI of the request does not name a bucket of the table, at the S3 endpoint of the table"
    )


def _unescaped(text: str) -> str:
    if "+" in text:  # S3 takes it for a space in some places
        raise ForbiddenError("the URI of the request has a plus sign; write it as %2B, and a space as %20")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise BadRequestError("the URI of the request is not UTF-8") from error


def _query(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split("&") if text else ():
        name, _, value = part.partition("=")
        name = _unescaped(name)
        if name in found:
            raise BadRequestError(f"the request has the parameter {name[:80]!r} twice")
        found[name] = _unescaped(value)
    return found


def _operation(
    request: SignRequest, bucket: str, key: str, query: Mapping[str, str], prefixes: Sequence[Prefix]
) -> Operation | None:
    """Return the S3 operation that a request calls, or None if this server does not sign such requests.

    Raises:
        ForbiddenError: something that the request names is not in the prefixes.
    """
    names, method = frozenset(query) - _SDK, request.method
    if key:
        _require_within(prefixes, bucket, key)
        if method in ("GET", "HEAD"):
            return Operation(changes=False) if names <= {"partNumber"} else None
        if method == "PUT":
            return Operation(changes=True) if names in (frozenset(), {"partNumber", "uploadId"}) else None
        if method == "POST":
            return Operation(changes=True) if names in ({"uploads"}, {"uploadId"}) else None
        if method == "DELETE":
            return Operation(changes=True) if names in (frozenset(), {"uploadId"}) else None
        return None
    if method == "GET" and "prefix" in names and names <= _LIST:
        _require_within(prefixes, bucket, query["prefix"])
        return Operation(changes=False)
    if method == "POST" and names == {"delete"}:
        body = (request.body or "").encode()
        for one in _deleted_keys(body):
            _require_within(prefixes, bucket, one)
        return Operation(changes=True, body_hash=hashlib.sha256(body).hexdigest())
    return None


def _require_within(prefixes: Sequence[Prefix], bucket: str, key: str) -> None:
    if not any(one.contains(bucket, key) for one in prefixes):
        raise ForbiddenError(f"the key or prefix {key[:200]!r} is not in the locations of the table")


def _deleted_keys(body: bytes) -> list[str]:
    """Return the keys in the body of a request that deletes several objects. The XML must have the simplest form,
    because all parsers interpret this form in the same way.

    Raises:
        BadRequestError: the body has another form.
    """
    text = body.removeprefix(b'<?xml version="1.0" encoding="UTF-8"?>')
    if not text:
        raise BadRequestError("a request to delete several objects is signed only if its body is sent, too")
    if b"<!" in text or b"<?" in text:
        raise BadRequestError("the XML in the body of the request must not contain declarations or comments")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise BadRequestError(f"the body of the request is not XML: {error}") from error
    namespace = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    keys = []
    for one in root if root.tag == f"{namespace}Delete" else ():
        if one.tag == f"{namespace}Object" and [part.tag for part in one] == [f"{namespace}Key"]:
            keys.append(one[0].text or "")
        elif one.tag != f"{namespace}Quiet":
            raise BadRequestError("the body of the request may have only the elements Object, Key and Quiet")
    if not 0 < len(keys) <= _MOST_KEYS or any(len(one) for one in root.iter(f"{namespace}Key")):
        raise BadRequestError(f"the body of the request must name 1 to {_MOST_KEYS} keys")
    return keys


def signed_headers(
    request: SignRequest, operation: Operation, region: str, credentials: Any
) -> dict[str, str]:
    """Return the headers that a client must add to a request. Headers that the request already has are left out.

    Args:
        operation: the result of `checked`.
        credentials: botocore's credentials.
    Raises:
        BadRequestError: the header with the hash of the body has a value that this server cannot sign.
    """
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest

    given = {name.lower(): ",".join(values) for name, values in request.headers.items()}
    body_hash = given.get(_HASH) or operation.body_hash or _UNSIGNED
    if body_hash not in _HASHES and not _SHA256.fullmatch(body_hash):
        raise BadRequestError(
            f"the header {_HASH} is {body_hash[:80]!r}, which this server cannot sign; send the SHA-256 of the body in "
            f"lowercase hexadecimal, or {' or '.join(_HASHES)}"
        )
    if operation.body_hash is not None and body_hash != operation.body_hash:
        raise BadRequestError(f"the header {_HASH} is {body_hash[:80]!r}, which is not the hash of the body")

    class Signer(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
        def payload(self, _: object) -> str:
            return body_hash

    covered = {
        name: text for name, text in given.items() if name.startswith("x-amz-") or name == "content-md5"
    }
    covered.pop("x-amz-date", None)
    made = AWSRequest(request.method, request.uri, headers=covered)
    Signer(credentials, "s3", region).add_auth(made)
    return {name: text for name, text in made.headers.items() if given.get(name.lower()) != text}
