"""Check of a realm's references: the registry, which lists them, the reference rows, and whether both agree."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from polaris_spark.catalog.catalogs.references import CATALOGS
from polaris_spark.catalog.rows import DROPPED, NAMES, CatalogRow
from polaris_spark.clock import AHEAD_MS, iso_text
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import CorruptionError, PolarisError
from polaris_spark.ids import id_time_ms
from polaris_spark.index import Entry, Index, IndexRoot
from polaris_spark.maintenance.fsck.entities import row_of
from polaris_spark.maintenance.fsck.history import WRONG_HEAD, Root, head_faults
from polaris_spark.maintenance.fsck.rows import (
    AHEAD,
    MISSING,
    REPAIR,
    UNREADABLE,
    WARNING,
    Problem,
    RowReader,
)
from polaris_spark.store.references import ReferenceStore
from polaris_spark.system.lost_rows import commits_of_missing
from polaris_spark.system.reference_reader import head_in_row
from polaris_spark.system.registrations import registered_by
from polaris_spark.system.registry import REFERENCES, ROOT, Registered

UNLISTED = "unlisted-reference"
WRONG_SEAL = "wrong-seal"
WRONG_REGISTRATION = "wrong-registration"
STRAY = "stray-reference"


class Times(NamedTuple):
    """Times with which a check compares other times, in milliseconds since 1970."""

    dropped_ms: int
    """Time in milliseconds since 1970. The objects of references that were dropped before this time need not exist."""
    young_ms: int
    """Time in milliseconds since 1970. Objects made at or after this time may be incomplete, because their writer may
    still be at work."""
    latest_ms: int
    """The latest time at which an id can have been made, in milliseconds since 1970."""


class FoundReferences(NamedTuple):
    """The references and catalogs of a realm, and the problems found while reading them."""

    roots: list[Root]
    """References whose history must be complete, the registry first."""
    catalogs: dict[str, CatalogRow]
    """Rows of the realm's catalogs, by entity id in hexadecimal; empty if they cannot be read."""
    problems: list[Problem]


def references(rows: RowReader, times: Times) -> FoundReferences:
    """Return the references of a realm, and the problems of their rows and of their entries in the registry."""
    return _References(rows, times).run()


class _References:
    def __init__(self, rows: RowReader, times: Times) -> None:
        self._rows = rows
        self._times = times
        self._problems: list[Problem] = []

    def run(self) -> FoundReferences:
        names = ReferenceStore(self._rows.backend, self._rows.place.instance).names()
        heads = {name: head for name in sorted(names) if (head := self._head(name)) is not None}
        root = self._head(ROOT)
        if ROOT not in names and root is None:
            self._blame(
                MISSING, ROOT, ROOT, "the registry has no row, so the references of the realm are unknown"
            )
        listed = [] if root is None else self._listed(root)
        roots = [] if root is None else [Root(ROOT, ROOT, root)]
        backend, realm = self._rows.backend, self._rows.place.instance
        for registered in listed:
            row_name, head = registered.row_name, heads.get(registered.row_name)
            if head is None and row_name not in names:
                head = self._head(row_name)  # the row was written after the rows were listed
                if head is None and backend.read_reference(realm, row_name) is not None:
                    continue
            roots += self._compared(registered, head, unreadable=row_name in names and head is None)
        if root is not None:
            self._unlisted(heads, listed)
        catalogs = self._catalogs(roots)
        if catalogs is not None:
            self._strays(roots, catalogs)
        return FoundReferences(roots, catalogs or {}, self._problems)

    def _head(self, row_name: str) -> Head | None:
        """Return the head in a reference's row; None if the row is missing or unreadable.

        Faults of the head, and an unreadable row, are added to the problems.
        """
        name = row_name.rpartition("@")[0] or row_name
        try:
            head = head_in_row(self._rows.backend, self._rows.place.instance, row_name)
        except CorruptionError as error:
            self._blame(UNREADABLE, name, row_name, str(error))
            return None
        if head is None:
            return None
        fence_ms = id_time_ms(head.fence) if head.fence > 0 else 0
        for message in head_faults(head, self._times.latest_ms, fence_ms):
            self._blame(WRONG_HEAD, name, row_name, message)
        latest = max(head.time, id_time_ms(head.commit) if head.commit > 0 else 0)
        if latest > self._times.latest_ms + AHEAD_MS:
            self._blame(AHEAD, name, row_name, f"the time of its head is {iso_text(latest)}: {REPAIR}")
        return head

    def _listed(self, head: Head) -> list[Registered]:
        commit = self._rows.values([head.commit], Commit).get(head.commit)
        if commit is None or REFERENCES not in commit.index_names:
            return []
        root = commit.index_roots[commit.index_names.index(REFERENCES)]
        listed: list[Registered] = []
        try:
            for key, entry in Index(root, self._rows.shards).range():
                registered = self._registered(key, entry.pointer, entry.value)
                if registered is not None:
                    listed.append(registered)
                else:
                    row = row_of(root, head.commit, key, self._rows.shards)
                    self._blame_object(WRONG_REGISTRATION, row, f"registration {key!r} cannot be decoded")
        except CorruptionError:
            pass  # the check of the index reports it
        self._check_sources(head, root, listed)
        return listed

    @staticmethod
    def _registered(key: bytes, source: int, value: bytes) -> Registered | None:
        try:
            return registered_by(key.decode(), Entry(source, value))
        except (CorruptionError, UnicodeDecodeError):
            return None

    def _check_sources(self, head: Head, root: IndexRoot, listed: Collection[Registered]) -> None:
        commits = self._rows.values([one.source for one in listed], Commit)
        for registered in listed:
            commit, said = commits.get(registered.source), registered.registration
            if commit is not None and (commit.number, commit.time) != (said.number, said.commit_time):
                row = row_of(root, head.commit, registered.name.encode(), self._rows.shards)
                message = (
                    f"the registration of {registered.name} says that the commit {registered.source}, from which the "
                    f"reference began, has number {said.number} and time {said.commit_time}; it has number "
                    f"{commit.number} and time {commit.time}"
                )
                self._blame_object(WRONG_REGISTRATION, row, message, reference=registered.name)

    def _compared(self, registered: Registered, head: Head | None, *, unreadable: bool) -> Iterator[Root]:
        """Compare a reference's registration with its row. Yield the reference if its history must be complete.

        Args:
            registered: the reference's entry in the registry.
            head: the head in the reference's row; None if the row is missing or unreadable.
            unreadable: whether the row exists but cannot be read.
        """
        name, row_name, said = registered.name, registered.row_name, registered.registration
        if unreadable:
            return
        if said.state == "live":
            if head is None:
                yield Root(name, row_name, registered.first_head())
                self._no_row(registered)
                return
            if head.sealed:
                message = "it is sealed like a dropped reference, but the registry lists it as live"
                self._blame(WRONG_SEAL, name, row_name, message)
            if not head.given_up:
                yield Root(name, row_name, head)
        elif head is not None:
            if not head.sealed:
                message = (
                    "it was dropped but is not sealed, because the process that dropped it died; the next sweep seals "
                    "it"
                )
                self._blame(WRONG_SEAL, name, row_name, message, warning=True)
            if said.time >= self._times.dropped_ms and not head.given_up:
                yield Root(name, row_name, head)

    def _no_row(self, registered: Registered) -> None:
        """Report a problem if the row of a live reference was lost.

        It counts as lost if there are commits that may have been made to the reference. Otherwise, the row was never
        written, which is not a problem.
        """
        try:
            newer = commits_of_missing(self._rows.store, registered)
        except PolarisError:  # another check reports the error; no commit shows that there was a row
            return
        if newer:
            message = (
                f"its row is missing, and there are commits after commit {registered.registration.number}, "
                f"where it began, up to commit {newer[0].number} ({newer[0].id})"
            )
            self._blame(MISSING, registered.name, registered.row_name, message)

    def _unlisted(self, heads: dict[str, Head], listed: Collection[Registered]) -> None:
        generations = {one.name: one.registration.generation for one in listed}
        for row_name, head in heads.items():
            if row_name == ROOT or head.sealed:
                continue
            name, _, generation = row_name.rpartition("@")
            if not name or not _is_hexadecimal(generation):
                self._blame(
                    UNLISTED,
                    row_name,
                    row_name,
                    "its name is not a reference's name followed by @ and a hexadecimal generation",
                )
            elif int(generation, 16) != generations.get(name):
                message = "the registry does not list it, although it is not sealed"
                self._blame(UNLISTED, name, row_name, message)

    def _catalogs(self, roots: Collection[Root]) -> dict[str, CatalogRow] | None:
        """Return the catalogs in the newest commit of the reference `catalogs`; None if they cannot be read."""
        root = next((root for root in roots if root.reference == CATALOGS), None)
        if root is None:
            return None
        commit = self._rows.values([root.head.commit], Commit).get(root.head.commit)
        if commit is None:
            return None
        indexes = [
            Index(root, self._rows.shards)
            for name, root in zip(commit.index_names, commit.index_roots, strict=True)
            if name in (NAMES, DROPPED)
        ]
        try:
            pointers = [entry.pointer for index in indexes for _, entry in index.range()]
        except CorruptionError:
            return None
        found = self._rows.values(pointers, CatalogRow)
        if len(found) < len(pointers):
            return None
        return {f"{row.entity_id:x}": row for row in found.values()}

    def _strays(self, roots: Collection[Root], catalogs: Collection[str]) -> None:
        for root in roots:
            kind, _, rest = root.reference.partition("/")
            if kind == "cat" and rest.partition("/")[0] not in catalogs:
                self._blame(
                    STRAY,
                    root.reference,
                    root.row_name,
                    "the realm has no catalog to which this reference belongs",
                )

    def _blame(self, kind: str, reference: str, key: str, message: str, *, warning: bool = False) -> None:
        severity = WARNING if warning else "error"
        realm = self._rows.place.realm
        self._problems.append(Problem(severity, kind, realm, reference, key, "", message))

    def _blame_object(self, kind: str, id: int, message: str, *, reference: str = ROOT) -> None:
        path = f"head of {ROOT}, index {REFERENCES}"
        self._problems.append(self._rows.problem(kind, id, message, reference=reference, path=path))


def _is_hexadecimal(text: str) -> bool:
    try:
        return int(text, 16) >= 0
    except ValueError:
        return False
