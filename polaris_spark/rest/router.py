"""Routing of requests to functions by method and path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.errors import BadRequestError, NotFoundError, UnsupportedOperationError
from polaris_spark.rest.request import Request, Response

_REMEMBERED = 4_096
"""Largest number of paths whose routes a router remembers."""
_SHORT = 256
"""Largest length of a path whose route is remembered, in characters."""

Answer = Callable[[Catalog, Request], Response]


class Route(NamedTuple):
    """A method and a path as the specification writes it, without `v1/{prefix}`."""

    method: str
    path: str
    answer: Answer


class Match(NamedTuple):
    """The function for a request, with the variable parts of its path and the prefix if the path had one."""

    answer: Answer
    params: Mapping[str, str]
    prefix: str | None
    template: str
    """The path of the route, as the specification writes it."""


class Router:
    """Finder of routes by the shape of the path."""

    def __init__(self, routes: list[Route]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], dict[str, Answer]]]] = {}
        for route in routes:
            shape = tuple(route.path.split("/"))
            shapes = self._by_length.setdefault(len(shape), [])
            methods = next((m for s, m in shapes if s == shape), None)
            if methods is None:
                shapes.append((shape, methods := {}))
            methods[route.method] = route.answer
        self.roots = frozenset(route.path.split("/")[0] for route in routes)
        """First parts of the routes' paths. A catalog whose name is one of these cannot be selected by a prefix."""
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
        if parts[0] != "v1" or len(parts) < 2:
            raise NotFoundError(f"no such path: {path!r}")
        parts, prefix = parts[1:], None
        methods, params, shape = self._match(parts)
        if methods is None and len(parts) > 1:
            prefix = _unquoted(parts[0], unquote)
            methods, params, shape = self._match(parts[1:])
        if methods is None:
            raise NotFoundError(f"no such path: {path!r}")
        answer = methods.get(method)
        if answer is None:
            raise UnsupportedOperationError(f"{path!r} does not support {method}")
        return Match(answer, params, prefix, "/".join(shape))

    def _match(self, parts: list[str]) -> tuple[dict[str, Answer] | None, dict[str, str], tuple[str, ...]]:
        for shape, methods in self._by_length.get(len(parts), ()):
            params = {}
            for expected, part in zip(shape, parts, strict=True):
                if expected[0] == "{":
                    params[expected[1:-1]] = _unescape(part)
                elif expected != part:
                    break
            else:
                return methods, params, shape
        return None, {}, ()


def _unescape(part: str) -> str:
    """Return an unescaped part of a path. Iceberg's Java client escapes parts like form data: `+` is a space and `%2B`
    is a plus."""
    return _unquoted(part, unquote_plus) if "%" in part or "+" in part else part


def _unquoted(part: str, unquoting: Callable[..., str]) -> str:
    try:
        return unquoting(part, errors="strict")
    except UnicodeDecodeError as error:
        raise BadRequestError(f"path part {part!r} is not UTF-8") from error
