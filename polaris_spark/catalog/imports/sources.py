"""Interface of the sources of an import, which list tables, views and namespaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from polaris_spark.catalog.entities.entities import NamespaceName


class SourceEntry(NamedTuple):
    """A table or view that the source of an import lists."""

    namespace: NamespaceName
    name: str
    kind: bytes | None
    """`TABLE` or `VIEW`; None if the source does not know it, so that it is read from the metadata file."""
    metadata_location: str
    problem: str = ""
    """Why the table or view cannot be imported; empty if it can."""


class ListedNamespace(NamedTuple):
    """A namespace that the source of an import lists."""

    name: NamespaceName
    properties: Mapping[str, str] = {}


class Source(Protocol):
    """A catalog or directory tree to import from."""

    def entries(self) -> Iterator[SourceEntry | ListedNamespace]:
        """Yield all tables, views and namespaces, and read them from the source on demand. A namespace comes before its
        tables and views.

        Raises:
            Exception: any error of the source's library. Entries that were already yielded are valid.
        """
        ...
