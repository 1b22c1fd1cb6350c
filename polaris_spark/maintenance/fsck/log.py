"""Check of consecutive commits: their indexes, and whether each commit's log matches its changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from polaris_spark.catalog.merges.state_merge import MERGED
from polaris_spark.catalog.rows import IDS, LOCATIONS, NAMES, UNCONFIRMED, id_bytes, id_from
from polaris_spark.commits.rows import Commit, Entries, LogEntry
from polaris_spark.errors import CorruptionError, WrongTypeError
from polaris_spark.index import Entry, ExpectedShard, Index, IndexRoot, check, diff
from polaris_spark.index.entries import embedded_total
from polaris_spark.maintenance.fsck.contents import ContentCheck
from polaris_spark.maintenance.fsck.history import WRONG_TYPE
from polaris_spark.maintenance.fsck.rows import WARNING, Problem, RowReader
from polaris_spark.system.registry import REFERENCES

WRONG_INDEX = "wrong-index"
WRONG_LOG = "wrong-log"
QUOTA = "quota"

MAX_EMBEDDED_BYTES = 16 * 1024
"""Maximum total size of the index changes that a commit stores in its own row, in bytes."""

_TOGETHER = 64
_NOTHING = Entry()


class CommitsUnit(NamedTuple):
    """A range of consecutive commits of a reference, which are checked together."""

    reference: str
    commits: Sequence[tuple[int, int]]
    """(number, id) of each commit, oldest first. The first commit only serves for comparison with the second, unless
    `from_floor` is true."""
    from_floor: bool
    """Whether the first commit is the oldest commit of the history, and its indexes must be checked, too."""


def commit_problems(rows: RowReader, unit: CommitsUnit) -> Iterator[Problem]:
    """Yield the problems of the indexes and log entries of a range of commits."""
    checked = _Commits(rows, unit.reference)
    before: tuple[int, Commit] | None = None
    for start in range(0, len(unit.commits), _TOGETHER):
        some = unit.commits[start : start + _TOGETHER]
        found = rows.values([id for _, id in some], Commit)
        logs = rows.values([commit.entries for commit in found.values()], Entries)
        for number, id in some:
            commit = found.get(id)
            if commit is None:
                before = None
                continue
            if unit.from_floor or before is not None:
                yield from checked.indexes(id, commit)
            entries = logs.get(commit.entries)
            if before is not None and before[0] == number - 1 and entries is not None:
                yield from checked.step(id, before[1], commit, entries.entries)
            before = number, commit


class _Commits:
    def __init__(self, rows: RowReader, reference: str) -> None:
        self._rows = rows
        self._reference = reference
        self._sound: dict[str, set[ExpectedShard]] = {}
        self._contents = ContentCheck(rows, reference)

    def indexes(self, id: int, commit: Commit) -> Iterator[Problem]:
        """Yield the problems of a commit's indexes. Shards (nodes of an index) that were checked before are skipped."""
        if len(commit.index_names) != len(commit.index_roots):
            yield self._problem(WRONG_INDEX, id, id, "the numbers of its index names and index roots differ")
            return
        embedded = 0
        for name, root in zip(commit.index_names, commit.index_roots, strict=True):
            for fault in check(root, self._rows.shards, self._sound.setdefault(name, set())):
                path = f"commit {id}, index {name}"
                yield self._problem(WRONG_INDEX, fault.shard or id, id, fault.message, path=path)
            embedded += embedded_total(root.keys, root.pointers, root.values)
        if embedded > MAX_EMBEDDED_BYTES:
            message = f"its indexes embed {embedded:,} bytes, over {MAX_EMBEDDED_BYTES:,}"
            yield self._problem(QUOTA, id, id, message, severity=WARNING)

    def step(self, id: int, before: Commit, after: Commit, entries: Sequence[LogEntry]) -> Iterator[Problem]:
        """Yield problems of a commit's log: changes that it omits or states wrongly, and damaged tables and views.

        Args:
            before: the parent commit.
            after: the commit, whose id is `id`.
            entries: the log entries of the commit.
        """
        try:
            if _has(before, after, NAMES):
                own = [
                    entry for entry in entries if entry.action != MERGED
                ]  # the others are of another branch
                messages = list(self._names_faults(before, after, own))
            elif _has(before, after, REFERENCES):
                messages = list(self._registry_faults(before, after, entries))
            else:
                messages = []
        except WrongTypeError as error:
            yield self._problem(WRONG_TYPE, error.id, id, str(error))
            messages = []
        except CorruptionError:
            messages = []  # the check of the index reports it
        for message in messages:
            yield self._problem(WRONG_LOG, after.entries, id, message)
        if _has(before, after, NAMES):
            yield from self._contents.check([entry.after for entry in entries], f"log of commit {id}")

    def _names_faults(self, before: Commit, after: Commit, entries: Sequence[LogEntry]) -> Iterator[str]:
        old, new = self._index(before, NAMES), self._index(after, NAMES)
        state: dict[bytes, int] = {}

        def at(key: bytes) -> int:
            if key not in state:
                found = old.get(key)
                state[key] = 0 if found is None else found.pointer
            return state[key]

        for position, entry in enumerate(entries):
            source = entry.old_key or entry.key
            if at(source) != entry.before:
                yield (
                    f"entry {position} ({entry.action}) says that {source!r} pointed to object {entry.before} before; "
                    f"it pointed to {at(source)}"
                )
            at(entry.key)
            if entry.old_key:
                state[entry.old_key] = 0
            state[entry.key] = entry.after
        for key, pointer in state.items():
            found = new.get(key)
            there = 0 if found is None else found.pointer
            if there != pointer:
                yield (
                    f"according to its log entries, {key!r} points to object {pointer}; in its index names, it points "
                    f"to {there}"
                )
        for key, _, _ in diff(self._root(before, NAMES), self._root(after, NAMES), self._rows.shards):
            if key not in state:
                yield f"{key!r} changed without a log entry"
        entities = {id_bytes(entry.entity) for entry in entries}
        for name in (IDS, LOCATIONS, UNCONFIRMED):
            for key, one, other in diff(self._root(before, name), self._root(after, name), self._rows.shards):
                entity = key if name == IDS else id_bytes(id_from((other or one or _NOTHING).value))
                if entity not in entities:
                    yield f"{key!r} of index {name} changed without a log entry of its entity"

    def _registry_faults(self, before: Commit, after: Commit, entries: Sequence[LogEntry]) -> Iterator[str]:
        new = self._index(after, REFERENCES)
        last = {entry.key: entry for entry in entries}
        for key, entry in last.items():
            found = new.get(key)
            source = entry.after or entry.before
            if found is not None and source and found.pointer != source:
                yield (
                    f"according to its log entries, {key!r} points to commit {source}; in its index references, it "
                    f"points to {found.pointer}"
                )
            if found is None and entry.after:
                yield f"{key!r} is missing from the index references, although a log entry of the commit created it"
        for key, _, _ in diff(
            self._root(before, REFERENCES), self._root(after, REFERENCES), self._rows.shards
        ):
            if key not in last:
                yield f"{key!r} changed without a log entry"

    def _index(self, commit: Commit, name: str) -> Index:
        return Index(self._root(commit, name), self._rows.shards)

    @staticmethod
    def _root(commit: Commit, name: str) -> IndexRoot:
        if name not in commit.index_names:
            return IndexRoot()
        return commit.index_roots[commit.index_names.index(name)]

    def _problem(
        self, kind: str, id: int, commit: int, message: str, *, path: str = "", severity: object = "error"
    ) -> Problem:
        found = self._rows.problem(
            kind, id, message, reference=self._reference, path=path or f"commit {commit}"
        )
        return found if severity == "error" else found._replace(severity=WARNING)


def _has(before: Commit, after: Commit, name: str) -> bool:
    return name in before.index_names or name in after.index_names
