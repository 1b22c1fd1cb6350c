"""Routing of requests to functions by method and path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

from polaris_spark.access.needs import UNDECLARED, Needs
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.errors import BadRequestError, NotFoundError, UnsupportedOperationError
from polaris_spark.rest.access import Role
from polaris_spark.rest.request import Request, Response

_REMEMBERED = 4_096
"""Maximum number of paths whose routes a router caches."""
_SHORT = 256
"""Maximum length of a path whose route is cached, in characters."""

ICEBERG = "v1"
"""First part of the paths of the Iceberg REST protocol."""
EXTENSION = "polaris-spark/v1"
"""First two parts of the paths of the extension, which are the routes that this product adds to the protocol."""

MANAGEMENT = "api/management/v1"
"""First part of the paths of the management API, as in Apache Polaris. They have no prefix."""

POLARIS = "polaris/v1"
"""First part of the paths of the policies, as in Apache Polaris' catalog API."""

Answer = Callable[[Catalog, Request], Response]


class Route(NamedTuple):
    """An HTTP method, a path template, and the function that answers requests for them. The template has the form of
    the specification, without base and prefix, such as `namespaces/{namespace}/tables`."""

    method: str
    path: str
    answer: Answer
    base: str = ICEBERG
    """First part of the path: `ICEBERG`, `EXTENSION`, `MANAGEMENT` or `POLARIS`."""
    least: Role = Role.CLIENT
    """Lowest role that can use the route."""
    body: type | None = None
    """Message class of the request's body; None if the body has no class or there is none."""
    result: type | None = None
    """Message class of the response's body. Set only for routes of the extension and of the management API."""
    query: tuple[str, ...] = ()
    """Names of the query's parameters."""
    needs: Needs = UNDECLARED
    """What a caller needs in a realm with access control."""

    @property
    def template(self) -> str:
        """The path template without a prefix. For a route that is not an Iceberg route, it begins with the
        base."""
        return self.path if self.base == ICEBERG else f"{self.base}/{self.path}"


class Match(NamedTuple):
    """The route of a request, the variable parts of the request's path, and the prefix in the path (None if there is
    none)."""

    route: Route
    params: Mapping[str, str]
    prefix: str | None

    @property
    def template(self) -> str:
        """The path template of the route; see `Route.template`."""
        return self.route.template


_MANAGEMENT = tuple(MANAGEMENT.split("/"))

_Shapes = dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]]
"""By the number of parts of the path: a list of (parts of a path template, routes with this template by HTTP
method)."""


class Router:
    """Finds the route of a request by its method and path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._by_base: dict[tuple[str, ...], _Shapes] = {}
        for route in self.routes:
            shape = tuple(route.path.split("/"))
            by_length = self._by_base.setdefault(tuple(route.base.split("/")), {})
            shapes = by_length.setdefault(len(shape), [])
            methods = next((m for s, m in shapes if s == shape), None)
            if methods is None:
                shapes.append((shape, methods := {}))
            methods[route.method] = route
        self.roots = frozenset(
            route.path.split("/")[0] for route in self.routes if route.base in (ICEBERG, POLARIS)
        )
        """First parts of the paths of the Iceberg routes. A catalog whose name is one of them cannot be selected by a
        prefix."""
        self._remembered = lru_cache(_REMEMBERED)(self._found)

    def find(self, method: str, path: str) -> Match:
        """Return the route of a request.

        Raises:
            NotFoundError: no route has this path.
            UnsupportedOperationError: routes have this path, but none has this method.
        """
        return (self._remembered if len(path) <= _SHORT else self._found)(method, path)

    def _found(self, method: str, path: str) -> Match:
        parts = path.strip("/").split("/")
        base = next((base for base in self._by_base if tuple(parts[: len(base)]) == base), None)
        if base is None or len(parts) == len(base):
            raise NotFoundError(f"no such path: {path!r}")
        shapes, parts, prefix = self._by_base[base], parts[len(base) :], None
        methods, params = _match(shapes, parts)
        if methods is None and len(parts) > 1 and base != _MANAGEMENT:
            prefix = _unquoted(parts[0], unquote)
            methods, params = _match(shapes, parts[1:])
        if methods is None:
            raise NotFoundError(f"no such path: {path!r}")
        route = methods.get(method)
        if route is None:
            raise UnsupportedOperationError(f"{path!r} does not support {method}")
        return Match(route, params, prefix)


def _match(shapes: _Shapes, parts: list[str]) -> tuple[dict[str, Route] | None, dict[str, str]]:
    for shape, methods in shapes.get(len(parts), ()):
        params = {}
        for expected, part in zip(shape, parts, strict=True):
            if expected[0] == "{":
                params[expected[1:-1]] = _unescape(part)
            elif expected != part:
                break
        else:
            return methods, params
    return None, {}


def _unescape(part: str) -> str:
    """Return an unescaped part of a path. Iceberg's Java client escapes parts like form data: `+` is a space and `%2B`
    is a plus."""
    return _unquoted(part, unquote_plus) if "%" in part or "+" in part else part


def _unquoted(part: str, unquoting: Callable[..., str]) -> str:
    try:
        return unquoting(part, errors="strict")
    except UnicodeDecodeError as error:
        raise BadRequestError(f"path part {part!r} is not UTF-8") from error
