"""Directory trees as sources: every directory with a folder `metadata` of metadata files in it is a table.

A table is named by its path below the root, and nothing is looked for inside of one. Its newest metadata file is that
of the highest version: `v3.metadata.json` as Hadoop's catalog names them, `00003-<uuid>.metadata.json` as others do,
each maybe compressed (`.gz.metadata.json`, `.metadata.json.gz`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from polaris_spark.catalog.files import Files, absolute
from polaris_spark.catalog.importing.sources import Listed, ListedNamespace
from polaris_spark.catalog.importing.trees import Directory, lister
from polaris_spark.catalog.rows import TABLE
from polaris_spark.errors import BadRequestError, SourceError

METADATA = "metadata"
HINT = "version-hint.text"

_NAME = re.compile(r"(?:v(?P<hadoop>\d+)|(?P<other>\d+)-[^/]+?)(?:\.gz)?\.metadata\.json(?:\.gz)?", re.ASCII)


_OF_TABLES = (METADATA, "data")
"""Folders of the table itself, which are not searched for other tables; nor are the folders of partitions."""

_LOOKS = 100
"""Number of folders in a table's folder that are searched for other tables, the uppermost first."""

_LONGEST_HINT = 4_096
"""Longest version hint that is read, in bytes."""


class Version(NamedTuple):
    """A metadata file by its name; the newest sorts last."""

    number: int
    changed: float
    """Seconds since 1970: which of two files of one number is newer, one of them being from a commit that failed."""
    file: str
    hadoop: bool


def versions(folder: Directory) -> list[Version]:
    """The metadata files of a folder, oldest first."""
    found = []
    for file, changed in folder.files.items():
        match = _NAME.fullmatch(file)
        if match is not None:
            number = match["hadoop"] or match["other"]
            found.append(Version(int(number), changed, file, match["hadoop"] is not None))
    return sorted(found)


class DirectoryTree:
    """Tables below a root. With `hadoop`, by the conventions of Iceberg's Hadoop catalog.

    There, the version hint says which version is the current one (and later ones in a row follow it, as
    `HadoopTableOperations.refresh` does), and every directory that is no table is a namespace.
    """

    def __init__(self, root: str, properties: Mapping[str, str], *, hadoop: bool = False) -> None:
        """
        Args:
            root: a path of this machine or a URI.
            properties: of pyiceberg's FileIO.
        Raises:
            SourceError: nothing here can list it.
        """
        self.root = absolute(root)
        self.hadoop = hadoop
        self._list = lister(self.root, properties)
        self._files = Files(dict(properties))

    def entries(self) -> Iterator[Listed | ListedNamespace]:
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

    def _below(self, path: tuple[str, ...], at: str, found: Directory) -> Iterator[Listed | ListedNamespace]:
        """Depth first, without recursion: a tree may be deeper than Python's stack."""
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
    ) -> Iterator[tuple[Listed | ListedNamespace | None, tuple[tuple[str, ...], str, Directory] | None]]:
        """Each directory as an entry, or as something to look below, or both."""
        for name, what in found.unread.items():
            yield Listed(path, name, None, f"{at}/{name}", what), None
        if METADATA in found.files:
            yield (
                Listed(path, METADATA, None, f"{at}/{METADATA}", "a file, where tables have a directory"),
                None,
            )
        for name in found.directories:
            here, inner = f"{at}/{name}", (*path, name)
            try:
                below = self._list(here)
                table = self._table(inner, here) if METADATA in below.directories else None
            except OSError as error:
                yield Listed(path, name, None, here, f"cannot be listed: {error}"), None
                continue
            if table is not None:
                table, inside = self._apart(table, here, below)
                yield table, None if inside is None else (inner, here, inside)
            else:
                is_namespace = self.hadoop and not name.startswith(".")
                yield ListedNamespace(inner) if is_namespace else None, (inner, here, below)

    def _apart(self, table: Listed, at: str, found: Directory) -> tuple[Listed, Directory | None]:
        """A table, and the directory in which to search for other tables if its folder contains some. In that case the
        table gets a problem, because it would own the files of the other tables."""
        within = [name for name in found.directories if name not in _OF_TABLES and "=" not in name]
        waiting, looked = [f"{at}/{name}" for name in within], 0
        while waiting and looked < _LOOKS:
            here, looked = waiting.pop(0), looked + 1
            try:
                below = self._list(here)
                if METADATA in below.directories and versions(self._list(f"{here}/{METADATA}")):
                    problem = (
                        f"its folder holds another table, {here}: register this one by its metadata file"
                    )
                    return table._replace(problem=problem), found._replace(directories=within)
            except OSError:  # told where the folder is looked into
                continue
            waiting += [f"{here}/{name}" for name in below.directories]
        return table, None

    def _table(self, path: tuple[str, ...], at: str) -> Listed | None:
        """The table at a location; None if there is no metadata file of one."""
        folder = self._list(f"{at}/{METADATA}")
        found = [version for version in versions(folder) if version.hadoop or not self.hadoop]
        kind = TABLE if self.hadoop else None
        namespace, name = path[:-1], path[-1] if path else at.rsplit("/", 1)[-1]
        if not found:
            odd = next((file for file in folder.unread if _NAME.fullmatch(file)), None)
            where = f"{at}/{METADATA}/{odd}"
            return Listed(namespace, name, kind, where, folder.unread[odd]) if odd is not None else None
        newest, problem = found[-1], ""
        if self.hadoop and HINT in folder.files:
            newest, problem = self._hinted(at, found)
        return Listed(namespace, name, kind, f"{at}/{METADATA}/{newest.file}", problem)

    def _hinted(self, at: str, found: list[Version]) -> tuple[Version, str]:
        """The version that the hint names. A hint that cannot be read counts as missing, as with Iceberg; a hint with a
        path is a problem."""
        try:
            text = self._files.read(f"{at}/{METADATA}/{HINT}", limit=_LONGEST_HINT)
        except BadRequestError:
            return found[-1], ""
        if b"/" in text:
            return found[-1], f"{HINT} holds a path where the number of a version belongs"
        try:
            hint = int(text)
        except ValueError:
            return found[-1], ""
        by_number = {version.number: version for version in found}
        if hint not in by_number:
            return found[-1], f"{HINT} names version {hint}, whose metadata file is missing"
        while hint + 1 in by_number:
            hint += 1
        return by_number[hint], ""
