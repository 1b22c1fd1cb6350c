"""From request to response: the one contract, whatever carried the request here."""

from __future__ import annotations

from collections.abc import Mapping

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.errors import BadRequestError, NotFoundError
from polaris_spark.rest.config import ROUTES
from polaris_spark.rest.errors import response_of
from polaris_spark.rest.request import NotModified, Request, Response
from polaris_spark.rest.router import Router

ROUTER = Router(ROUTES)

REMEMBERED = 1_024
"""Requests whose responses a session remembers."""
SHORT = 1_024
"""Characters of a request; responses to longer ones are not remembered."""


def handle(
    catalog: Catalog,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    body: str | None = None,
    headers: Mapping[str, str] | None = None,
    principal: str,
) -> Response:
    """Answer one request to one catalog; errors become responses of the error model.

    Args:
        path: as the specification writes it, with or without a prefix: `v1/namespaces/a%1Fb/tables`.
        query: decoded parameters.
        body: JSON text.
        headers: names in any case.
    """
    try:
        query, headers = query or {}, headers or {}
        _refuse_no_text(*query, *query.values(), *headers, *headers.values(), method, path, body or "")
        lower = {name.lower(): value for name, value in headers.items()}
        match = ROUTER.find(method, path)
        if match.prefix is not None and match.prefix != catalog.name:
            raise NotFoundError(f"no catalog {match.prefix!r} here; this is catalog {catalog.name!r}")
        request = Request(method, path, match.params, dict(query), lower, body, principal)
        return catalog.loading(lambda: match.answer(catalog, request), principal)
    except Exception as error:
        return response_of(error)


class Unmodified:
    """The requests of one session that were answered with 304.

    A client that has a table asks for it again and again. While the head of the branch is the same, so is the answer,
    and reading the head is all that remains to be done. Thread-safe.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], NotModified] = {}

    def handle(
        self,
        catalog: Catalog,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
        principal: str,
    ) -> Response:
        """As `handle`."""
        if method != "GET" or body or not headers:
            return handle(catalog, method, path, query=query, body=body, headers=headers, principal=principal)
        try:
            key = (path, *(query or {}).items(), None, *headers.items())
            known = self._known.get(key)
        except (AttributeError, TypeError):  # what is not text is refused
            return handle(catalog, method, path, query=query, body=body, headers=headers, principal=principal)
        if known is not None:
            try:
                head = catalog.head()
            except Exception as error:
                return response_of(error)
            if known.holds_at(head):
                return known.fresh()
            catalog = catalog.beginning_at(head)
        response = handle(catalog, method, path, query=query, body=body, headers=headers, principal=principal)
        if isinstance(response, NotModified) and len(str(key)) <= SHORT:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[key] = response
            return response.fresh()
        return response


def _refuse_no_text(*given: object) -> None:
    """Types are not checked where a Python program calls; what it forgot to write as text is its mistake, not ours."""
    for one in given:
        if one is not None and not isinstance(one, str):
            raise BadRequestError(
                f"{type(one).__name__} where text must be: bodies are JSON text, the rest strings"
            )
