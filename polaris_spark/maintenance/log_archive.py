"""Archiving of the log of commits that a trim is about to remove from a history (see `catalog.branches.archived_log`).

The log is archived before the history floor is raised. If the process dies in between, the commits are both stored and
archived: readers take stored commits from the history, and the next trim does not archive them again. So no log entry
is missing, and none is read twice. If two trims run at the same time, each of them adds only the commits that the
archive lacks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, islice, takewhile

from polaris_spark.catalog.branches.archived_log import (
    ARCHIVE,
    LOG,
    ArchivedCommit,
    LogPart,
    Part,
    encode_range,
    line_bounds,
    line_of,
    packed,
    part_key,
    parts_in,
    stored_log,
)
from polaris_spark.catalog.catalogs.catalogs import ensure_reference
from polaris_spark.commits.change import Change, Operation, Unrepeated
from polaris_spark.commits.rows import INLINE_PARENTS, Commit, Head
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import CorruptionError
from polaris_spark.index import Entry
from polaris_spark.maintenance.periods import Policy
from polaris_spark.system.registry import References

log = logging.getLogger("polaris_spark")

_ARCHIVED_TOGETHER = 4_000
"""Maximum number of commits whose log is archived by one commit to the archive."""

_REMOVED_TOGETHER = 500
"""Maximum number of parts that one commit to the archive removes."""


class _Upkeep(Unrepeated, Change[None, None]):
    """A change of the archive. It is repeated by the next trim if its outcome is not known."""

    def __init__(self, operation: Operation) -> None:
        self.operation = Operation(b"", operation.principal)

    def prepare(self, view: State) -> None:
        return None


class _Add(_Upkeep):
    """Change that archives the log of consecutive commits of one line (a reference without its forks), except commits
    that are already archived.

    If the archive has other commits with the same numbers, because a recovery has reset the reference since, these
    commits and all later ones are replaced.
    """

    def __init__(
        self, line: bytes, reference: str, commits: Sequence[ArchivedCommit], operation: Operation
    ) -> None:
        super().__init__(operation)
        self._line = line
        self._reference = reference
        self._commits = commits

    def apply(self, state: State, prepared: None) -> None:
        new = {commit.number: commit for commit in self._commits}
        first = min(new)
        replaced = self._open_parts(state, first)
        there = [commit for part in replaced for commit in state.get(part.id, LogPart).commits(part.id)]
        before = [commit for commit in there if commit.number < first]
        after = {commit.number: commit for commit in there if commit.number >= first}
        is_same = all(number not in new or new[number].id == commit.id for number, commit in after.items())
        if is_same and new.keys() <= after.keys():
            return
        both = {**after, **new} if is_same else new
        for part in replaced:
            state.remove(LOG, part_key(self._line, part.first))
        for range, commits in packed(self._reference, (*before, *(both[number] for number in sorted(both)))):
            id = state.add(LogPart.of(commits))
            state.put(LOG, part_key(self._line, commits[0].number), Entry(id, encode_range(range)))

    def _open_parts(self, state: State, first: int) -> list[Part]:
        """Return the parts that have commits with the number `first` or later ones, and the part before them if it is
        not full; the oldest first."""
        start, end = line_bounds(self._line)
        found = parts_in(state.scan(LOG, part_key(self._line, first), end))
        before = parts_in(state.scan(LOG, start, part_key(self._line, first), limit=1, reverse=True))
        return [part for part in before if part.range.last >= first or not part.range.is_full] + found


class _Remove(_Upkeep):
    """Change that removes parts from the archive, unless they have changed."""

    def __init__(self, parts: Sequence[Part], operation: Operation) -> None:
        super().__init__(operation)
        self._parts = parts

    def apply(self, state: State, prepared: None) -> None:
        for part in self._parts:
            key = part_key(part.line, part.first)
            entry = state.lookup(LOG, key)
            if entry is not None and entry.pointer == part.id:
                state.remove(LOG, key)


def archive_log(
    references: References, reference: str, at: CommitReader, *, before: int, operation: Operation
) -> None:
    """Archive the log of a reference from its history floor on.

    A commit whose row or log entries are lost is left out, with a warning. Readers then find a gap in the log, and
    trims and sweeps do not fail forever.

    Args:
        reference: name of the reference.
        at: a commit of the reference. Its row name must be known.
        before: number of the first commit whose log is not archived.
        operation: names the principal.
    Raises:
        CorruptionError: a part of the archive is missing or unreadable.
    """
    line = line_of(at, reference, at.row_name)
    if line is None:
        return
    commits = _readable(at, reference, max(at.head.floor_number, line.began), before - 1)
    while some := tuple(islice(commits, _ARCHIVED_TOGETHER)):
        ensure_reference(references, ARCHIVE, operation)
        references.commit(ARCHIVE, _Add(line.key, reference, some, operation))


def archive_sealed(
    references: References, policy: Policy, row_name: str, head: Head, operation: Operation
) -> None:
    """Archive the log of a reference that was dropped, before its row becomes a tombstone.

    Args:
        head: the sealed head of the reference.
    Raises:
        CorruptionError: a part of the archive is missing or unreadable.
    """
    reference = row_name.rpartition("@")[0]
    if policy.log_of(reference):
        try:
            commit = references.store.get(head.commit, Commit)
        except CorruptionError as error:
            log.warning("the log of %s is lost: %s", reference, error)
            return
        at = CommitReader(references.store, b"", head, commit, row_name=row_name)
        archive_log(references, reference, at, before=head.number + 1, operation=operation)


def remove_old_logs(
    references: References, log_ms: Callable[[str], int], operation: Operation, *, now_ms: int
) -> None:
    """Remove expired parts of a realm's archive, the oldest parts of each line first.

    A part has expired if all its commits are older than the retention of the log. The first part of a line that has not
    expired keeps all later parts of the line, so that no log gets a gap.

    Args:
        log_ms: returns the retention of a reference's log, in milliseconds, given the reference's name.
        operation: supplies the principal that is recorded.
        now_ms: current time, in milliseconds since 1970.
    """
    found = references.lookup(ARCHIVE)
    if found is None or found.registration.state != "live":
        return

    def is_old(part: Part) -> bool:
        return part.range.latest < now_ms - log_ms(part.range.reference)

    listed = parts_in(references.read(ARCHIVE).index(LOG).range())
    by_line = groupby(listed, key=lambda part: part.line)
    old = chain.from_iterable(takewhile(is_old, parts) for _, parts in by_line)
    while some := tuple(islice(old, _REMOVED_TOGETHER)):
        references.commit(ARCHIVE, _Remove(some, operation))


def _readable(at: CommitReader, reference: str, low: int, high: int) -> Iterator[ArchivedCommit]:
    """Yield the commits with the numbers `low` to `high` (both included) that can be read, the oldest first."""
    for first in range(low, high + 1, INLINE_PARENTS):
        last = min(high, first + INLINE_PARENTS - 1)
        try:
            yield from list(stored_log(at.store, at.head, first, last))
            continue
        except CorruptionError:  # find out which commits are lost
            numbers = range(first, last + 1)
        for number in numbers:
            try:
                yield from list(stored_log(at.store, at.head, number, number))
            except CorruptionError as error:
                log.warning("the log of commit %d of %s is lost: %s", number, reference, error)
