"""What an import reads names from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from polaris_spark.catalog.entities import NamespaceName


class Listed(NamedTuple):
    """A table or view of a source."""

    namespace: NamespaceName
    name: str
    kind: bytes | None
    """`TABLE` or `VIEW`; None where only its metadata file can say."""
    metadata_location: str
    problem: str = ""
    """Why it cannot be imported, if so."""


class ListedNamespace(NamedTuple):
    """A namespace of a source."""

    name: NamespaceName
    properties: Mapping[str, str] = {}


class Source(Protocol):
    """A catalog or directory tree to import from."""

    def entries(self) -> Iterator[Listed | ListedNamespace]:
        """Everything in it, read as it is asked for; a namespace comes before what is in it.

        Raises:
            Exception: whatever its library raises; what was listed before is good.
        """
        ...
