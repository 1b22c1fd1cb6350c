"""The archived log: the log entries of commits that were trimmed, without the data that these commits pointed to.

`maintenance.log_archive` archives the log of a commit before the commit is trimmed. The entries of consecutive commits
form a part (`LogPart`): one compressed object without pointers, so that a sweep can delete the commits and the objects
that they needed. The index `log` of the reference `log-archive` lists the parts. The key of a part is the line of its
reference (see below) and the number of its first commit; the value describes the part (`PartRange`). The archive is a
reference like any other, so every job that copies, checks, recovers or sweeps a realm handles it without further rules.

A *line* identifies the log of one reference. A branch keeps its line when it is renamed or restored after a drop. It
gets a new line when it is moved to another commit, because the numbers of its commits begin again there. The parts of a
branch contain only its own commits: the commits before the branch began are in the log of another branch.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.branches.merge_base import own_branch
from polaris_spark.catalog.catalogs.references import ACCESS, CATALOGS
from polaris_spark.commits.as_of import AsOf, pinned
from polaris_spark.commits.log import ancestor, before_history, oldest_first
from polaris_spark.commits.rows import Commit, Entries, Head, LogEntry
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BeforeHistoryError, CorruptionError, HistoryTrimmedError, InputError
from polaris_spark.index import Entry, Index
from polaris_spark.objects import object_type
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registrations import REFERENCES, ROOT, name_parts, registered_by

ARCHIVE = "log-archive"
"""Name of the reference that has the archived logs of all references of a realm."""

LOG = "log"
"""Name of the index of the parts."""

COMMITS_OF_A_PART = 200
"""Maximum number of commits in a part."""

BYTES_OF_A_PART = 2**20
"""Size at which a part is full, in bytes before compression. A part can be larger if a single commit is larger."""


class ArchivedCommit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A commit whose log was archived."""

    number: int
    id: int
    time: int
    """Time of the commit, in milliseconds since 1970."""
    parent: int
    """Id of the commit before this one; 0 if there is none."""
    merged: tuple[int, ...]
    """Ids of the commits of other references that the commit merged."""
    entries: tuple[LogEntry, ...]
    """The log entries. Objects to which they point may have been deleted."""

    @property
    def commit(self) -> Commit:
        """The commit without its indexes and its pointer to the log entries."""
        parents = (self.parent,) if self.parent else ()
        return Commit(self.number, self.time, 0, parents, merged=self.merged)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[ArchivedCommit, ...]).decode


@object_type("log-part", revision=1)
class LogPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log of consecutive commits of one reference."""

    compressed: bytes
    """The commits, ascending by number, as MessagePack, compressed in zlib's format."""

    @classmethod
    def of(cls, commits: Sequence[ArchivedCommit]) -> LogPart:
        """Return a part with the given commits."""
        return cls(zlib.compress(_encode(commits)))

    def commits(self, id: int) -> tuple[ArchivedCommit, ...]:
        """Return the commits of this part, ascending by number.

        Args:
            id: object id of the part, for the error message.
        Raises:
            CorruptionError: the part cannot be decoded.
        """
        try:
            return _decode(zlib.decompress(self.compressed))
        except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CorruptionError(f"part {id} of the archived log cannot be decoded: {error}") from error


class PartRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a part contains: the value of its entry in the index `log`. Times are in milliseconds since 1970."""

    reference: str
    """Name of the reference when the part was written."""
    last: int
    """Number of the newest commit."""
    earliest: int
    """The earliest time of a commit."""
    latest: int
    """The latest time of a commit."""
    lowest: int
    """The lowest id of a commit."""
    highest: int
    """The highest id of a commit."""
    is_full: bool
    """Whether the part accepts no further commits."""


encode_range = msgspec.msgpack.Encoder().encode
_decode_range = msgspec.msgpack.Decoder(PartRange).decode


class Part(NamedTuple):
    """A part of the archived log, as the index lists it."""

    line: bytes
    first: int
    """Number of the oldest commit."""
    id: int
    """Id of the `LogPart`."""
    range: PartRange


def packed(
    reference: str, commits: Iterable[ArchivedCommit]
) -> Iterator[tuple[PartRange, tuple[ArchivedCommit, ...]]]:
    """Divide commits, given in the order of their numbers, into parts. Yield the range and the commits of each part.

    The numbers of the commits of a part have no gaps.
    """
    some: list[ArchivedCommit] = []
    size = 0
    for commit in commits:
        if some and commit.number != some[-1].number + 1:
            yield _range(reference, some, is_full=False), tuple(some)
            some, size = [], 0
        some.append(commit)
        size += len(_encode(commit))
        if len(some) >= COMMITS_OF_A_PART or size >= BYTES_OF_A_PART:
            yield _range(reference, some, is_full=True), tuple(some)
            some, size = [], 0
    if some:
        yield _range(reference, some, is_full=False), tuple(some)


def _range(reference: str, commits: Sequence[ArchivedCommit], *, is_full: bool) -> PartRange:
    times, ids = [commit.time for commit in commits], [commit.id for commit in commits]
    return PartRange(reference, commits[-1].number, min(times), max(times), min(ids), max(ids), is_full)


def part_key(line: bytes, first: int) -> bytes:
    """Return the key of a part in the index, from its line and the number of its first commit."""
    return line + b"\0" + first.to_bytes(8, "big")


def line_bounds(line: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of the keys of a line: the first one is included, the second one is not."""
    return line + b"\0", line + b"\1"


def parts_in(found: Iterable[tuple[bytes, Entry]]) -> list[Part]:
    """Decode entries of the index `LOG`, given as (key, entry) pairs, and return the parts that they describe."""
    return [
        Part(key[:-9], int.from_bytes(key[-8:], "big"), entry.pointer, _decode_range(entry.value))
        for key, entry in found
    ]


class Line(NamedTuple):
    """The line of a reference: the identity of its log in the archive."""

    key: bytes
    """The first bytes of the keys of its parts."""
    began: int
    """Number of the first commit of the line. Earlier commits of the reference are in the line of another branch."""


def line_of(at: CommitReader, reference: str, row_name: str) -> Line | None:
    """Return the line of a reference, which identifies its log in the archive; None if its log is not archived.

    Logs of the registry, of the list of catalogs, of access control and of branches are archived. A tag has the log of
    a branch, and other references have no log entries.

    Args:
        at: a commit of the reference.
    """
    if reference in (ROOT, CATALOGS, ACCESS):
        return Line(row_name.encode(), 0)
    parts = name_parts(reference)
    if parts is None or parts.is_tag:
        return None
    own, began = own_branch(at)
    return Line(f"{parts.catalog}{own:x}".encode(), began + 1 if own else 0)


class ArchivedLog(NamedTuple):
    """The archived log of one reference, below the history floor (the oldest commit that is still stored)."""

    parts: tuple[Part, ...] = ()
    """The parts, the oldest first."""
    floor: int = 0
    """Number of the commit at the history floor. Commits from here on are not read from the archive."""
    began: int = 0
    """`Line.began` of the reference."""

    @classmethod
    def below(cls, floor: int, parts: Iterable[Part], began: int = 0) -> ArchivedLog:
        """Return the archived log of a reference, made of the given parts that begin below the history floor.

        Args:
            began: `Line.began` of the reference.
        """
        return cls(tuple(part for part in parts if part.first < floor), floor, began)

    @property
    def oldest(self) -> int:
        """Number of the commit with which the part of the log that has no gaps begins.

        The archive can also have older commits, before a gap, if the log was not archived for a time.
        """
        found = self.floor
        for part in reversed(self.parts):
            if part.range.last + 1 < found:
                break
            found = part.first
        return found

    @property
    def is_complete(self) -> bool:
        """Whether the log of every commit of the reference is kept, except commits from before the reference began."""
        return self.oldest <= self.began

    def between(self, low: int, high: int) -> list[Part]:
        """Return the parts that can have commits with the numbers `low` to `high` (both included)."""
        return [part for part in self.parts if part.first <= high and part.range.last >= low]

    def newest_first(self, store: ObjectStore, low: int, high: int) -> Iterator[ArchivedCommit]:
        """Yield the archived commits with the numbers `low` to `high` (both included), the newest first."""
        high = min(high, self.floor - 1)
        for part in reversed(self.between(low, high)):
            yield from commits_of_part(store, part.id, low, high)

    def oldest_first(self, store: ObjectStore, low: int) -> Iterator[ArchivedCommit]:
        """Yield the archived commits from number `low` on, the oldest first."""
        high = self.floor - 1
        for part in self.between(low, high):
            yield from reversed(list(commits_of_part(store, part.id, low, high)))

    def commit(self, store: ObjectStore, number: int) -> ArchivedCommit | None:
        """Return the archived commit with a number; None if it is not in the archive."""
        return next(self.newest_first(store, number, number), None)

    def number_at(self, store: ObjectStore, as_of: AsOf) -> int | None:
        """Return the number of the archived commit that `as_of` names: a commit by its number or id or, if `as_of` is a
        time, the newest commit that is not later. Return None if the archive does not have the commit."""
        if as_of.number is not None:
            return None if self.commit(store, as_of.number) is None else as_of.number
        for part in reversed(self.between(0, self.floor - 1)):
            there = part.range
            is_here = (
                there.earliest <= as_of.time
                if as_of.time is not None
                else any(there.lowest <= id <= there.highest for id in as_of.commits)
            )
            if not is_here:
                continue
            for commit in commits_of_part(store, part.id, 0, self.floor - 1):
                if commit.time <= as_of.time if as_of.time is not None else commit.id in as_of.commits:
                    return commit.number
        return None


NO_ARCHIVE = ArchivedLog()


def commits_of_part(store: ObjectStore, part: int, low: int, high: int) -> Iterator[ArchivedCommit]:
    """Yield the commits of a part with the numbers `low` to `high` (both included), the newest first.

    Args:
        part: id of the part.
    """
    for commit in reversed(store.get(part, LogPart).commits(part)):
        if low <= commit.number <= high:
            yield commit


def stored_log(store: ObjectStore, head: Head, low: int, high: int) -> Iterator[ArchivedCommit]:
    """Yield the stored commits with the numbers `low` to `high` (both included), with their log entries, the oldest
    first."""
    for run in oldest_first(store, head, low, high) if low <= high else ():
        ids = [commit.entries for _, commit in run if commit.entries]
        entries = store.get_many(ids, Entries)
        for id, commit in run:
            listed = entries[commit.entries].entries if commit.entries else ()
            parent = commit.parents[0] if commit.parents else 0
            yield ArchivedCommit(commit.number, id, commit.time, parent, commit.merged, listed)


def log_from(store: ObjectStore, head: Head, reference: str, first: int) -> Iterator[ArchivedCommit]:
    """Yield the commits of a branch from number `first` on, with their log entries, the oldest first. Commits that were
    trimmed are read from the archive.

    Raises:
        HistoryTrimmedError: the log of commit `first`, or of a trimmed commit after it, is not in the archive.
    """
    floor = head.floor_number
    if first < floor:
        archived = Archive(ReferenceReader(store)).of(head, reference, "")
        if archived.oldest > first:
            raise HistoryTrimmedError(
                f"the log of commits {first} to {archived.oldest - 1} of {reference!r} is no longer kept; the oldest "
                f"commit whose log is kept is {archived.oldest}"
            )
        yield from archived.oldest_first(store, first)
    yield from stored_log(store, head, max(first, floor), head.number)


def number_in_log(store: ObjectStore, head: Head, archived: ArchivedLog, as_of: AsOf) -> int:
    """Return the number of the commit that `as_of` names in the log of a reference. The log includes archived commits.

    Args:
        head: head of the reference. It has no commit if only the archived log of the reference is left.
    Raises:
        HistoryTrimmedError: `as_of` is older than the oldest commit whose log is kept.
        BeforeHistoryError: `as_of` is a time before the first commit.
        InputError: `as_of` is a commit that is not in this log.
    """
    error: HistoryTrimmedError | InputError
    try:
        if head.commit:
            return pinned(store, head, as_of).number
        error = InputError(f"{as_of.option} {as_of.text!r} is not a commit of this history")
    except (HistoryTrimmedError, InputError) as raised:
        error = raised
    found = archived.number_at(store, as_of)
    if found is not None:
        return found
    if as_of.time is not None:
        first = archived.commit(store, 0)
        if first is not None:
            raise before_history(first.time, as_of.time)
        if not head.commit:
            error = HistoryTrimmedError(f"{as_of.option} {as_of.text!r} is before the log that is kept")
    raise error


def first_after(store: ObjectStore, head: Head, archived: ArchivedLog, since: AsOf) -> int:
    """Return the number of the first commit after `since` in the log of a reference, which includes archived commits.
    If no commit is later, return the number of the newest commit plus one.

    Raises:
        HistoryTrimmedError: log entries are missing between `since` and the oldest commit whose log is kept.
        InputError: `since` is not a commit of this log.
    """
    oldest = archived.oldest
    if since.number is not None and since.number + 1 == oldest:
        return oldest  # the log of the point itself is gone, but not that of the commits after it
    if since.commits and oldest and commit_in_log(store, head, archived, oldest).parents[0] in since.commits:
        return oldest
    try:
        first = number_in_log(store, head, archived, since) + 1
    except BeforeHistoryError:
        first = 0
    if first < oldest:
        raise HistoryTrimmedError(
            f"the log after {since.option} {since.text!r} has a gap: the log of the commits before commit number "
            f"{oldest} was not archived; give a later commit or time"
        )
    return first


def commit_in_log(store: ObjectStore, head: Head, archived: ArchivedLog, number: int) -> Commit:
    """Return the commit with a number in the log of a reference. The commit may be an archived one.

    Raises:
        HistoryTrimmedError: the log of this commit is not kept.
    """
    found = archived.commit(store, number) if number < head.floor_number else None
    return store.get(ancestor(store, head, number), Commit) if found is None else found.commit


class Archive:
    """Reader of the archived logs of a realm, as they were when this object was made."""

    def __init__(self, references: ReferenceReader, registry: CommitReader | None = None) -> None:
        """
        Args:
            registry: a commit of the registry; if None, the newest commit is read.
        """
        self._references = references
        registry = registry or references.registry()
        entry = None if registry is None else registry.index(REFERENCES).get(ARCHIVE.encode())
        self._index: Index | None = None
        if entry is not None:
            head = references.head_of(registered_by(ARCHIVE, entry))
            self._index = references.open(head).index(LOG) if head.commit else None

    def of(self, head: Head, reference: str, row_name: str) -> ArchivedLog:
        """Return the archived log of a reference whose newest commit is `head`."""
        floor = head.floor_number
        if self._index is None or not floor:
            return ArchivedLog((), floor)
        line = line_of(self._references.open(head), reference, row_name)
        if line is None:
            return ArchivedLog((), floor)
        return ArchivedLog.below(floor, parts_in(self._index.range(*line_bounds(line.key))), line.began)

    def lines(self) -> dict[bytes, tuple[Part, ...]]:
        """Return all parts of the archive by line, the oldest first."""
        found: dict[bytes, list[Part]] = {}
        for part in [] if self._index is None else parts_in(self._index.range()):
            found.setdefault(part.line, []).append(part)
        return {line: tuple(parts) for line, parts in found.items()}

    def time_of(self, commits: tuple[int, ...]) -> int | None:
        """Return the time of an archived commit, in milliseconds since 1970; None if the archive does not have the
        commit.

        Args:
            commits: the possible ids of the commit. (A text can be read as a decimal and as a hexadecimal id.)
        """
        store, point = self._references.store, AsOf("", commits)
        for parts in self.lines().values():
            archived = ArchivedLog(parts, parts[-1].range.last + 1)
            number = archived.number_at(store, point)
            commit = None if number is None else archived.commit(store, number)
            if commit is not None:
                return commit.time
        return None
