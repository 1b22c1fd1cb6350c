"""Import from catalogs that pyiceberg can open: REST, Glue, Hive and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import SNAPSHOT_LOADING_MODE, Endpoints, IdentifierKind, RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError

from polaris_spark.catalog.entities.entities import NamespaceName
from polaris_spark.catalog.imports.sources import ListedNamespace, SourceEntry
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.errors import SourceError


class PyIcebergTables:
    """Source of an import: a catalog that pyiceberg opens."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """
        Args:
            properties: properties for pyiceberg's `load_catalog`: `type`, `uri`, `token`, and so on.
        Raises:
            SourceError: the catalog does not exist, or does not respond.
        """
        try:
            given = {SNAPSHOT_LOADING_MODE: "refs", **properties}
            self._catalog: Catalog = load_catalog("source", **given)
        except Exception as error:  # libraries of catalogs raise many types
            raise SourceError(f"the catalog cannot be opened: {type(error).__name__}: {error}") from error

    def entries(self) -> Iterator[SourceEntry | ListedNamespace]:
        waiting: list[NamespaceName] = [()]
        while waiting:
            above = waiting.pop()
            inner = sorted(set(self._namespaces(above)))
            waiting += reversed(inner)
            if above:
                yield ListedNamespace(above, self._properties(above))
                yield from self._contents(above)

    def _namespaces(self, above: NamespaceName) -> list[NamespaceName]:
        """Return the namespaces directly below `above`. Return an empty list if the catalog does not support nested
        namespaces; such catalogs raise an error or list the top-level namespaces again."""
        try:
            listed = self._catalog.list_namespaces(above) if above else self._catalog.list_namespaces()
        except Exception as error:  # as above
            unnested = isinstance(error, (NoSuchNamespaceError, NotImplementedError))
            if above and unnested and not isinstance(self._catalog, RestCatalog):
                return []
            parent = ".".join(above) or "the catalog"
            raise SourceError(f"namespaces in {parent} cannot be listed: {error}") from error
        return [tuple(name) for name in listed if len(name) == len(above) + 1 and tuple(name[:-1]) == above]

    def _properties(self, namespace: NamespaceName) -> dict[str, str]:
        try:
            found = self._catalog.load_namespace_properties(namespace)
        except Exception as error:  # as above
            raise SourceError(f"namespace {'.'.join(namespace)} cannot be read: {error}") from error
        return {str(key): str(value) for key, value in found.items()}

    def _contents(self, namespace: NamespaceName) -> Iterator[SourceEntry]:
        try:
            tables = sorted(self._catalog.list_tables(namespace))
        except Exception as error:  # as above
            raise SourceError(
                f"tables in namespace {'.'.join(namespace)} cannot be listed: {error}"
            ) from error
        for identifier in tables:
            yield _listed(identifier, TABLE, self._table)
        for identifier in self._views(namespace):
            yield _listed(identifier, VIEW, self._view)

    def _views(self, namespace: NamespaceName) -> list[tuple[str, ...]]:
        try:
            return sorted(self._catalog.list_views(namespace))
        except Exception as error:  # each catalog without views raises another error
            if isinstance(self._catalog, RestCatalog) and not isinstance(error, NotImplementedError):
                raise SourceError(
                    f"views in namespace {'.'.join(namespace)} cannot be listed: {error}"
                ) from error
            return []

    def _table(self, identifier: tuple[str, ...]) -> str:
        return self._catalog.load_table(identifier).metadata_location

    def _view(self, identifier: tuple[str, ...]) -> str:
        """Return the metadata location of a view. pyiceberg's view objects do not contain this location, so it is
        requested from the REST server."""
        rest: Any = self._catalog
        if not isinstance(rest, RestCatalog):
            raise SourceError("views can be imported from SQL and REST catalogs only")
        place = rest._split_identifier_for_path(identifier, IdentifierKind.VIEW)
        response = rest._session.get(rest.url(Endpoints.load_view, prefixed=True, **place))
        response.raise_for_status()
        return str(response.json()["metadata-location"])


def _listed(
    identifier: tuple[str, ...], kind: bytes, locate: Callable[[tuple[str, ...]], str]
) -> SourceEntry:
    namespace, name = tuple(identifier[:-1]), identifier[-1]
    try:
        return SourceEntry(namespace, name, kind, locate(identifier))
    except Exception as error:  # as above: the other tables can still be imported
        return SourceEntry(
            namespace, name, kind, "", f"the source cannot load it: {type(error).__name__}: {error}"
        )
