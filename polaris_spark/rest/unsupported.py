"""Endpoints of the specification that this catalog does not support. Requests to them are refused, and they are not
advertised.

Clients plan their scans themselves. The catalog contains no functions. To unregister a table and keep its files, drop
it without purge, which writes its metadata file.
"""

from __future__ import annotations

from polaris_spark.access.needs import OPEN
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.errors import UnsupportedOperationError
from polaris_spark.rest.messages import OAuthError, encode
from polaris_spark.rest.request import Request, Response, json_response
from polaris_spark.rest.router import Route


def refuse(_: Catalog, request: Request) -> Response:
    """Refuse a request to any unsupported endpoint.

    Raises:
        UnsupportedOperationError: always.
    """
    raise UnsupportedOperationError(f"this catalog does not support {request.method} {request.path}")


def refuse_to_issue_tokens(_catalog: Catalog, _request: Request) -> Response:
    """Answer `POST oauth/tokens`: refuse to issue a token.

    The response has the form of OAuth errors (RFC 6749, 5.2), because clients parse no other form at this endpoint.
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
"""The response to every request for a token."""

TOKENS = Route("POST", "oauth/tokens", refuse_to_issue_tokens, needs=OPEN)

_TABLE = "namespaces/{namespace}/tables/{table}"

ROUTES = [
    TOKENS,
    Route("POST", f"{_TABLE}/plan", refuse, needs=OPEN),
    Route("GET", f"{_TABLE}/plan/{{plan}}", refuse, needs=OPEN),
    Route("DELETE", f"{_TABLE}/plan/{{plan}}", refuse, needs=OPEN),
    Route("POST", f"{_TABLE}/tasks", refuse, needs=OPEN),
    Route("POST", f"{_TABLE}/unregister", refuse, needs=OPEN),
    Route("GET", "namespaces/{namespace}/functions", refuse, needs=OPEN),
    Route("GET", "namespaces/{namespace}/functions/{function}", refuse, needs=OPEN),
]
