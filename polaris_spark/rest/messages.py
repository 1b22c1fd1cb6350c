"""Bodies of the REST protocol's requests and responses
(https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml)."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeVar

import msgspec

from polaris_spark.errors import BadRequestError

T = TypeVar("T")

_LONE_SURROGATE: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    r"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
    r"|[\ud800-\udfff]"
)
"""Pattern that matches half of a surrogate pair, either as an escape (`\\ud800`) or as a character. It also matches
some texts that only look like an escape, because the backslash is itself escaped."""


class Message(msgspec.Struct, rename="kebab", frozen=True, omit_defaults=True, gc=False):
    """Base class of request and response bodies whose field names are in kebab case. Unknown fields are ignored, as the
    specification requires."""


class CreateNamespaceRequest(Message, frozen=True, gc=False):
    namespace: list[str]
    properties: dict[str, str] | None = None


class UpdateNamespacePropertiesRequest(Message, frozen=True, gc=False):
    removals: list[str] | None = None
    updates: dict[str, str] | None = None


class CreateTableRequest(Message, frozen=True, gc=False):
    name: str
    schema: dict[str, Any]
    location: str | None = None
    partition_spec: dict[str, Any] | None = None
    write_order: dict[str, Any] | None = None
    stage_create: bool | None = None
    properties: dict[str, str] | None = None


class Identifier(Message, frozen=True, gc=False):
    namespace: list[str]
    name: str


class CommitTableRequest(Message, frozen=True, gc=False):
    requirements: list[dict[str, Any]] | None = None
    updates: list[dict[str, Any]] | None = None
    identifier: Identifier | None = None


class TransactionRequest(Message, frozen=True):
    """A request within a transaction: an addition to the protocol."""

    method: Literal["POST", "DELETE"]
    path: str
    """The path without a prefix, such as `v1/namespaces/db/tables/t`."""
    query: dict[str, str] = {}
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class CommitTransactionRequest(Message, frozen=True, gc=False):
    table_changes: list[CommitTableRequest]
    requests: list[TransactionRequest] = []


class RegisterTableRequest(Message, frozen=True, gc=False):
    name: str
    metadata_location: str
    overwrite: bool | None = None


class RegisterViewRequest(Message, frozen=True, gc=False):
    name: str
    metadata_location: str


class RenameRequest(Message, frozen=True, gc=False):
    source: Identifier
    destination: Identifier


class CreateViewRequest(Message, frozen=True, gc=False):
    name: str
    schema: dict[str, Any]
    view_version: dict[str, Any]
    location: str | None = None
    properties: dict[str, str] | None = None


class CommitViewRequest(Message, frozen=True, gc=False):
    updates: list[dict[str, Any]] | None = None
    requirements: list[dict[str, Any]] | None = None
    identifier: Identifier | None = None


class RemoteSignRequest(Message, frozen=True, gc=False):
    region: str
    uri: str
    method: Literal["PUT", "GET", "HEAD", "POST", "DELETE", "PATCH", "OPTIONS"]
    headers: dict[str, list[str]]
    properties: dict[str, str] | None = None
    body: str | None = None
    provider: str | None = None


class ErrorModel(Message, frozen=True, gc=False):
    message: str
    type: str
    code: int


class ErrorResponse(Message, frozen=True, gc=False):
    error: ErrorModel


class OAuthError(Message, frozen=True, rename=None, gc=False):
    """An error of an OAuth token endpoint (RFC 6749, 5.2). Its field names have underscores, unlike those of other
    messages."""

    error: str
    error_description: str


class ListNamespacesResponse(Message, frozen=True, gc=False):
    namespaces: list[list[str]]
    next_page_token: str | None = None


class ListTablesResponse(Message, frozen=True, gc=False):
    identifiers: list[Identifier]
    next_page_token: str | None = None


class NamespaceResponse(Message, frozen=True, omit_defaults=False, gc=False):
    namespace: list[str]
    properties: dict[str, str]


class UpdateNamespacePropertiesResponse(Message, frozen=True, omit_defaults=False, gc=False):
    updated: list[str]
    removed: list[str]
    missing: list[str]


_encoder = msgspec.json.Encoder()
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def encode(message: Any) -> str:
    """Return a body as JSON text."""
    return _encoder.encode(message).decode()


def decode(body: str | None, cls: type[T]) -> T:
    """Return the body of a request, decoded as a message of class `cls`.

    Raises:
        BadRequestError: the body is missing, is not JSON, or does not fit `cls`.
    """
    if not body:
        raise BadRequestError("the request has no body")
    decoder = _decoders.get(cls)
    if decoder is None:
        decoder = _decoders[cls] = msgspec.json.Decoder(cls)
    try:
        return decoder.decode(body)  # type: ignore[no-any-return]  # a decoder of cls
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        if _LONE_SURROGATE.search(body):
            raise BadRequestError(
                "cannot parse the request: it contains half of a surrogate pair, such as \\ud800, which is not "
                "Unicode text"
            ) from error
        raise BadRequestError(f"cannot parse the request: {error}") from error
