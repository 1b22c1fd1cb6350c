"""Import from directory trees. A directory that contains a folder `metadata` with metadata files is a table.

The name of a table is its path below the root. A table whose folder contains other tables is reported with a problem.
The newest metadata file is the one with the highest version: `v3.metadata.json` in Hadoop's catalog,
`00003-<uuid>.metadata.json` in others. Each may be compressed (`.gz.metadata.json`, `.metadata.json.gz`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from polaris_spark.catalog.files.files import Files, absolute
from polaris_spark.catalog.imports.sources import ListedNamespace, SourceEntry
from polaris_spark.catalog.imports.trees import Directory, lister
from polaris_spark.catalog.rows import TABLE
from polaris_spark.errors import BadRequestError, SourceError

METADATA = "metadata"
HINT = "version-hint.text"

_NAME = re.compile(r"(?:v(?P<hadoop>\d+)|(?P<other>\d+)-[^/]+?)(?:\.gz)?\.metadata\.json(?:\.gz)?", re.ASCII)


_OF_TABLES = (METADATA, "data")
"""Names of subfolders that every table may have. They and partition folders are not searched for other tables."""

_LOOKS = 100
"""Maximum number of subfolders of a table's folder that are searched for other tables. Upper levels are searched
first."""

_LONGEST_HINT = 4_096
"""Maximum size of a version hint, in bytes."""


class MetadataVersion(NamedTuple):
    """Name, version number and modification time of a metadata file. The newest version sorts last."""

    number: int
    changed: float
    """Modification time, in seconds since 1970. It orders files with the same number. All but one of these files come
    from failed commits."""
    file: str
    hadoop: bool


def versions(folder: Directory) -> list[MetadataVersion]:
    """Return the metadata files of a folder, the oldest first."""
    found = []
    for file, changed in folder.files.items():
        match = _NAME.fullmatch(file)
        if match is not None:
            number = match["hadoop"] or match["other"]
            found.append(MetadataVersion(int(number), changed, file, match["hadoop"] is not None))
    return sorted(found)


class DirectoryTree:
    """Source of an import: the tables below a root directory. If `hadoop` is true, the directory is read as a Hadoop
    catalog of Iceberg.

    In a Hadoop catalog, the file `version-hint.text` holds the number of the current version. If later versions follow
    it without a gap, the last of them is current, as in Iceberg's `HadoopTableOperations.refresh`. Every directory that
    is not a table is a namespace, unless its name begins with a dot.
    """

    def __init__(self, root: str, properties: Mapping[str, str], *, hadoop: bool = False) -> None:
        """
        Args:
            root: a path on this machine, or a URI.
            properties: properties of pyiceberg's FileIO.
        Raises:
            SourceError: no installed file system can list the root.
        """
        self.root = absolute(root)
        self.hadoop = hadoop
        self._list = lister(self.root, properties)
        self._files = Files(dict(properties))

    def entries(self) -> Iterator[SourceEntry | ListedNamespace]:
        try:
            found = self._list(self.root)
        except OSError as error:
            raise SourceError(f"{self.root!r} cannot be listed: {error}") from error
        table = self._table((), self.root) if METADATA in found.directories else None
        if table is not None:
            table, inside = self._apart(table, self.root, found)
            yield table
            if inside is None:
                return
            found = inside
        yield from self._below((), self.root, found)

    def _below(
        self, path: tuple[str, ...], at: str, found: Directory
    ) -> Iterator[SourceEntry | ListedNamespace]:
        """Yield the entries below a directory, depth first. This uses no recursion, because a tree may be deeper than
        Python's stack."""
        waiting = [iter(self._children(path, at, found))]
        while waiting:
            child = next(waiting[-1], None)
            if child is None:
                waiting.pop()
                continue
            entry, below = child
            if entry is not None:
                yield entry
            if below is not None:
                waiting.append(iter(self._children(*below)))

    def _children(
        self, path: tuple[str, ...], at: str, found: Directory
    ) -> Iterator[tuple[SourceEntry | ListedNamespace | None, tuple[tuple[str, ...], str, Directory] | None]]:
        """Yield pairs (entry, directory to search next) for the items of a directory.

        The entry is a table, a namespace or a problem; None if the item is only a directory to search. The directory to
        search next is a tuple (path, location, content); None if the search need not go into the item.
        """
        for name, what in found.unread.items():
            yield SourceEntry(path, name, None, f"{at}/{name}", what), None
        if METADATA in found.files:
            yield (
                SourceEntry(
                    path,
                    METADATA,
                    None,
                    f"{at}/{METADATA}",
                    "it is a file; the metadata of a table is in a directory of this name",
                ),
                None,
            )
        for name in found.directories:
            here, inner = f"{at}/{name}", (*path, name)
            try:
                below = self._list(here)
                table = self._table(inner, here) if METADATA in below.directories else None
            except OSError as error:
                yield SourceEntry(path, name, None, here, f"cannot be listed: {error}"), None
                continue
            if table is not None:
                table, inside = self._apart(table, here, below)
                yield table, None if inside is None else (inner, here, inside)
            else:
                is_namespace = self.hadoop and not name.startswith(".")
                yield ListedNamespace(inner) if is_namespace else None, (inner, here, below)

    def _apart(self, table: SourceEntry, at: str, found: Directory) -> tuple[SourceEntry, Directory | None]:
        """Check that a table's folder contains no other tables. Otherwise, the table would own the files of the other
        tables.

        Returns:
            the table and None. But if the folder contains other tables: the table with a description of the problem,
            and the directory in which to search for the other tables.
        """
        within = [name for name in found.directories if name not in _OF_TABLES and "=" not in name]
        waiting, looked = [f"{at}/{name}" for name in within], 0
        while waiting and looked < _LOOKS:
            here, looked = waiting.pop(0), looked + 1
            try:
                below = self._list(here)
                if METADATA in below.directories and versions(self._list(f"{here}/{METADATA}")):
                    problem = (
                        f"its folder contains another table, {here}; register this table by its metadata file"
                    )
                    return table._replace(problem=problem), found._replace(directories=within)
            except OSError:  # reported when the folder itself is searched
                continue
            waiting += [f"{here}/{name}" for name in below.directories]
        return table, None

    def _table(self, path: tuple[str, ...], at: str) -> SourceEntry | None:
        """Return the table at a location; None if there is no metadata file."""
        folder = self._list(f"{at}/{METADATA}")
        found = [version for version in versions(folder) if version.hadoop or not self.hadoop]
        kind = TABLE if self.hadoop else None
        namespace, name = path[:-1], path[-1] if path else at.rsplit("/", 1)[-1]
        if not found:
            odd = next((file for file in folder.unread if _NAME.fullmatch(file)), None)
            where = f"{at}/{METADATA}/{odd}"
            return SourceEntry(namespace, name, kind, where, folder.unread[odd]) if odd is not None else None
        newest, problem = found[-1], ""
        if self.hadoop and HINT in folder.files:
            newest, problem = self._hinted(at, found)
        return SourceEntry(namespace, name, kind, f"{at}/{METADATA}/{newest.file}", problem)

    def _hinted(self, at: str, found: list[MetadataVersion]) -> tuple[MetadataVersion, str]:
        """Return the version that is current according to the file `version-hint.text`, and a description of the
        problem with this file; an empty string if there is none. As in Iceberg, a hint that cannot be read or is not a
        number is ignored. But a hint that contains a path is a problem."""
        try:
            text = self._files.read(f"{at}/{METADATA}/{HINT}", limit=_LONGEST_HINT)
        except BadRequestError:
            return found[-1], ""
        if b"/" in text:
            return found[-1], f"{HINT} contains a path instead of a version number"
        try:
            hint = int(text)
        except ValueError:
            return found[-1], ""
        by_number = {version.number: version for version in found}
        if hint not in by_number:
            return found[-1], f"{HINT} contains version {hint}, whose metadata file is missing"
        while hint + 1 in by_number:
            hint += 1
        return by_number[hint], ""
