"""The log of a reference as JSON values, and the changes after a position of the log.

A position says which changes a reader has read. As text, it is the number and the id of a commit, such as
`17-32c742fe1eaf001`. If the reader has read only some changes of this commit, the number of these changes follows, such
as `17-32c742fe1eaf001-3`. The id shows whether the commit is still in the history: after a recovery, other commits have
the numbers of the lost commits. A number alone, such as `17`, is a position too, but without this check.

All readers that follow the log use `changes_after`: the route `GET changes`, `polaris-spark log --follow` and
`polaris-spark watch`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from polaris_spark.catalog.branches.archived_log import (
    NO_ARCHIVE,
    Archive,
    ArchivedCommit,
    ArchivedLog,
    stored_log,
)
from polaris_spark.catalog.rows import CATALOG, NAMESPACE, TABLE, VIEW
from polaris_spark.clock import iso_text
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Head, LogEntry
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import (
    CorruptionError,
    HistoryReplacedError,
    HistoryTrimmedError,
    InputError,
)
from polaris_spark.ids import MAX_ID
from polaris_spark.index.keys import decode_key
from polaris_spark.names import sql_name
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.reference_reader import ReferenceReader

Json = dict[str, Any]

POLL_SECONDS = 0.5
"""Interval between two reads of the head by a reader that waits for changes, in seconds."""

MAX_CHANGES = 1_000
"""Maximum number of changes in a page."""

_PAGE_CHARACTERS = 2**20
"""A page is full when the summaries and names of its changes have this number of characters."""

_MAX_HIDDEN = 10 * MAX_CHANGES
"""A page is full when this number of changes was left out, so that no request takes long."""

_MAX_NUMBER = 2**63 - 1
_POSITION = re.compile(r"([0-9]{1,19})(?:-([0-9a-f]{1,16})(?:-([0-9]{1,9}))?)?", re.ASCII)
_KINDS = {NAMESPACE: "namespace", TABLE: "table", VIEW: "view", CATALOG: "catalog"}


def kind_of(kind: bytes) -> str:
    """Return the kind of entity, such as `table`, for the kind byte of a key in the index `names`."""
    return _KINDS.get(kind, "entity")


def entity_name(key: bytes) -> tuple[str, str]:
    """Return (kind, name) of the entity to which a log entry's key belongs. If the key is not a key of the index
    `names`, it is the name of a reference."""
    try:
        decoded = decode_key(key)
    except CorruptionError:
        return "reference", key.decode(errors="backslashreplace")
    return kind_of(decoded.kind), sql_name((*decoded.path, decoded.name))


class BranchLog(NamedTuple):
    """The log of a reference: its stored commits, and the log of the commits that were trimmed."""

    objects: ObjectStore
    head: Head
    archived: ArchivedLog

    @property
    def oldest(self) -> int:
        """Number of the oldest commit whose log is kept."""
        return self.archived.oldest


def branch_log(at: CommitReader, reference: str) -> BranchLog:
    """Return the log of a catalog's branch.

    Args:
        at: newest commit of the branch.
        reference: name of the branch's reference.
    """
    if not at.head.floor_number:
        return BranchLog(at.store, at.head, NO_ARCHIVE)
    return BranchLog(at.store, at.head, Archive(ReferenceReader(at.store)).of(at.head, reference, ""))


class LogPosition(NamedTuple):
    """The changes that a reader of a log has read: all changes up to a commit, or some changes of it."""

    number: int
    """Number of the commit; -1 for none."""
    commit: int | None = None
    """Id of the commit; None if it is not known."""
    done: int | None = None
    """Number of changes of the commit that were read; None for all."""

    @classmethod
    def parse(cls, text: str, name: str) -> LogPosition:
        """Return the position that a text describes.

        Args:
            name: name of the parameter or option, for the message.
        Raises:
            InputError: the text is not a position.
        """
        match = _POSITION.fullmatch(text)
        if match is not None:
            number, id, done = match.groups()
            commit = None if id is None else int(id, 16)
            if int(number) <= _MAX_NUMBER and (commit is None or 0 < commit <= MAX_ID):
                return cls(int(number), commit, None if done is None else int(done))
        raise InputError(
            f"{name} is {text[:80]!r}; it must be the number of a commit, such as 17, or a position that an earlier "
            "answer contained, such as 17-32c742fe1eaf001"
        )

    def __str__(self) -> str:
        commit = "" if self.commit is None else f"-{self.commit:x}"
        return f"{self.number}{commit}" + ("" if self.done is None else f"-{self.done}")


def newest_position(log: BranchLog) -> LogPosition:
    """Return the position after all changes of a log."""
    return LogPosition(log.head.number, log.head.commit)


def oldest_position(log: BranchLog) -> LogPosition:
    """Return the position before all changes of a log that are kept."""
    return LogPosition(log.oldest - 1)


class LogPage(NamedTuple):
    """Some changes after a position, the oldest first, and the position after them."""

    changes: list[Json]
    position: LogPosition
    is_full: bool
    """Whether further changes may follow that did not fit in the page."""


def changes_after(
    log: BranchLog,
    after: LogPosition,
    limit: int = MAX_CHANGES,
    shows: Callable[[ArchivedCommit, LogEntry], bool] | None = None,
) -> LogPage:
    """Return the changes after a position, at most `limit`.

    Each change has its commit (number, id and time) as `commit`, and the position after the change as `position`.

    Args:
        shows: returns whether the reader may see a change; other changes are left out. None for all changes.
    Raises:
        HistoryTrimmedError: the log of commits after the position is not kept any more.
        HistoryReplacedError: the commit of the position is not in the history. The reference was recovered to an older
            state, or set to another commit.
    """
    _require_in(log, after)
    changes: list[Json] = []
    position, last, characters = after, after.commit if after.done is None else None, 0
    skipped, hidden = after.done or 0, 0
    following = after.number + (after.done is None)
    for commit in _oldest_first(log, following):
        if commit.number != following:
            raise _trimmed(following, commit.number - 1)
        if last is not None and commit.parent != last:
            raise _replaced(last)
        entries = commit.entries
        if skipped > len(entries):
            raise InputError(
                f"the position {after} does not exist: commit {commit.number} has only {len(entries)} changes"
            )
        for index in range(skipped, len(entries)):
            if len(changes) >= limit or characters >= _PAGE_CHARACTERS or hidden >= _MAX_HIDDEN:
                return LogPage(changes, position, is_full=True)
            is_last = index + 1 == len(entries)
            position = LogPosition(commit.number, commit.id, None if is_last else index + 1)
            if shows is not None and not shows(commit, entries[index]):
                hidden += 1
                continue
            changes.append(_with_commit(commit, entries[index], position))
            characters += len(entries[index].key) + sum(map(len, (*entries[index].summary.values(),)))
        skipped, last, following = 0, commit.id, commit.number + 1
        position = LogPosition(commit.number, commit.id)
    if position.commit is None and position.number == log.head.number:
        position = newest_position(log)
    return LogPage(changes, position, is_full=False)


def _with_commit(commit: ArchivedCommit, entry: LogEntry, position: LogPosition) -> Json:
    at = {"number": commit.number, "id": f"{commit.id:x}", "time": iso_text(commit.time)}
    return {"commit": at, "position": str(position), **change_json(entry)}


def _require_in(log: BranchLog, after: LogPosition) -> None:
    """Refuse a position that the log does not contain, or after which the log is not complete."""
    head, number, commit = log.head, after.number, after.commit
    if number > head.number:
        raise HistoryReplacedError(
            f"there is no commit {number:,}; the newest commit has the number {head.number:,}. If commit {number:,} "
            "was read earlier, the reference was recovered to a state before that commit; begin again"
        )
    first = number + (after.done is None)
    if log.oldest > first:
        raise _trimmed(first, log.oldest - 1)
    if commit is None:
        return
    if number >= head.floor_number:
        present: int | None = ancestor(log.objects, head, number)
    else:
        archived = log.archived.commit(log.objects, number)
        present = None if archived is None else archived.id
    # If the log begins with the next commit, its parent shows whether the commit of the position came before it.
    if present is not None and present != commit:
        raise _replaced(commit)


def _trimmed(first: int, last: int) -> HistoryTrimmedError:
    return HistoryTrimmedError(
        f"commits {first:,} to {last:,} were trimmed before they were read, and their log is not kept; begin again"
    )


def _replaced(commit: int) -> HistoryReplacedError:
    return HistoryReplacedError(
        f"commit {commit:x}, which was read last, is not in the history any more: the reference was recovered to an "
        "older state, or set to another commit; begin again"
    )


def new_changes(
    newest: Callable[[], BranchLog], after: LogPosition | None, *, wait: Callable[[], object] | None = None
) -> Iterator[Json]:
    """Yield the changes after a position, oldest first, and then each new change; never end.

    Args:
        newest: reads the log as it is now.
        after: the position; None for the position after the newest change.
        wait: called before the log is read again; by default, sleeps for `POLL_SECONDS`.
    Raises:
        HistoryTrimmedError, HistoryReplacedError: see `changes_after`.
    """
    log = newest()
    position = newest_position(log) if after is None else after
    while True:
        page = changes_after(log, position)
        yield from page.changes
        position = page.position
        if not page.is_full:
            (wait or partial(time.sleep, POLL_SECONDS))()
            log = newest()


def _oldest_first(log: BranchLog, first: int) -> Iterator[ArchivedCommit]:
    """Yield the commits from number `first` on, the oldest first."""
    yield from log.archived.oldest_first(log.objects, first)
    yield from stored_log(log.objects, log.head, max(first, log.head.floor_number), log.head.number)


def change_json(entry: LogEntry) -> Json:
    """Return a log entry as a JSON value."""
    kind, name = entity_name(entry.key)
    change: Json = {
        "action": entry.action,
        "kind": kind,
        "name": name,
        "entity": f"{entry.entity:x}",
        "principal": entry.principal,
        "time": iso_text(entry.time),
        "operation": entry.operation.hex() or None,
        "before": f"{entry.before:x}" if entry.before else None,
        "after": f"{entry.after:x}" if entry.after else None,
        "summary": entry.summary,
    }
    if entry.old_key:
        change["old-name"] = entity_name(entry.old_key)[1]
    return change
