"""What the specification has and this catalog does not offer: refused as unsupported, and not advertised.

Clients read and write files with their own credentials, plan their scans themselves, and have no functions here. A
table leaves the catalog with its files by being dropped without purge, its metadata file written.
"""

from __future__ import annotations

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.errors import UnsupportedOperationError
from polaris_spark.rest.messages import OAuthError, encode
from polaris_spark.rest.request import Request, Response, json_response
from polaris_spark.rest.router import Route


def refuse(_: Catalog, request: Request) -> Response:
    """Any of them.

    Raises:
        UnsupportedOperationError: always.
    """
    raise UnsupportedOperationError(f"this catalog does not support {request.method} {request.path}")


def refuse_to_issue_tokens(_catalog: Catalog, _request: Request) -> Response:
    """POST oauth/tokens

    The answer has the form of OAuth's errors (RFC 6749, 5.2), because clients parse nothing else here.
    """
    return NO_TOKENS


NO_TOKENS = json_response(
    encode(
        OAuthError(
            error="unsupported_grant_type",
            error_description="this catalog issues no tokens: set the client's property 'token' to a token that the "
            "server accepts, and remove 'credential'",
        )
    ),
    400,
)
"""The answer to every request for a token."""

TOKENS = Route("POST", "oauth/tokens", refuse_to_issue_tokens)

_TABLE = "namespaces/{namespace}/tables/{table}"

ROUTES = [
    TOKENS,
    Route("GET", f"{_TABLE}/credentials", refuse),
    Route("POST", f"{_TABLE}/sign", refuse),
    Route("POST", f"{_TABLE}/plan", refuse),
    Route("GET", f"{_TABLE}/plan/{{plan}}", refuse),
    Route("DELETE", f"{_TABLE}/plan/{{plan}}", refuse),
    Route("POST", f"{_TABLE}/tasks", refuse),
    Route("POST", f"{_TABLE}/unregister", refuse),
    Route("GET", "namespaces/{namespace}/functions", refuse),
    Route("GET", "namespaces/{namespace}/functions/{function}", refuse),
]
