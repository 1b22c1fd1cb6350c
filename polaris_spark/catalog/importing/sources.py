"""Interface of the sources from which an import reads names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from polaris_spark.catalog.entities import NamespaceName


class SourceEntry(NamedTuple):
    """A table or view of a source."""

    namespace: NamespaceName
    name: str
    kind: bytes | None
    """`TABLE` or `VIEW`; None if only the metadata file shows the kind."""
    metadata_location: str
    problem: str = ""
    """Why the table or view cannot be imported; empty if it can."""


class ListedNamespace(NamedTuple):
    """A namespace of a source."""

    name: NamespaceName
    properties: Mapping[str, str] = {}


class Source(Protocol):
    """A catalog or directory tree to import from."""

    def entries(self) -> Iterator[SourceEntry | ListedNamespace]:
        """Yield all entries, which are read lazily. A namespace comes before its tables and views.

        Raises:
            Exception: any error of the source's library; the entries yielded before are valid.
        """
        ...
