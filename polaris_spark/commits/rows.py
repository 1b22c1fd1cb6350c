"""Rows of a commit: the commit object, its log entries, and the value of the reference that points to the commit."""

from __future__ import annotations

import msgspec

from polaris_spark.clock import AHEAD_MS
from polaris_spark.index import IndexRoot
from polaris_spark.objects import Strong, Weak, object_type

INLINE_PARENTS = 20
"""Number of nearest ancestors whose ids a commit lists directly."""

MOST_RESETS = 16
"""Maximum number of commits in a history whose time is earlier than their parent's. In a history with so many, a new
commit's time is always later than its parent's, even if the parent's time came from a clock that was far ahead."""

FIRST_SKIP = 4
"""Exponent of the smallest spacing of skip pointers, 2**FIRST_SKIP commits: nearer ancestors are in `parents`."""


@object_type("commit", revision=1)
class Commit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One state of everything a reference holds.

    `parents` are the ids of commits number-1, number-2, ... (at most 20). `skips[i]` is the id of the ancestor whose
    number is the largest multiple of 2**(i + FIRST_SKIP) below this commit's number, so that any ancestor is found in
    O(log n) reads and a new commit's skips follow from its parent's alone.
    """

    number: int
    time: int
    """Milliseconds since 1970; later than the parent's, unless `Head.time_resets` names this commit."""
    entries: Strong
    """The log entries of this commit (an `Entries` object), or 0 for a reference's first commit."""
    parents: tuple[Weak, ...] = ()
    skips: tuple[Weak, ...] = ()
    merged: tuple[Weak, ...] = ()
    """Commits of other references whose content this commit merged."""
    index_names: tuple[str, ...] = ()
    index_roots: tuple[IndexRoot, ...] = ()
    operations_floor: int = 0
    """Milliseconds since 1970. Operations whose ids were made before this time, by any client, may be missing from the
    index of operations, even if they were carried out."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One change to one entity, for the audit trail, the change feed and recovery."""

    operation: bytes
    """The operation id that the client gave (16 bytes of a UUID), or empty."""
    principal: str
    time: int
    """Time at which the change was prepared, in milliseconds since 1970."""
    action: str
    entity: int
    """Id of the entity, which a rename does not change."""
    key: bytes
    """Key of the entity in the index `names`: after the change, or before a drop."""
    before: Strong = 0
    after: Strong = 0
    """The fields `before` and `after` point to the entity's content before and after the change; 0 if the entity did
    not exist then."""
    summary: dict[str, str] = {}
    result: bytes = b""
    """The part of the response that cannot be rebuilt from the content."""
    old_key: bytes = b""
    """The key before a rename; empty for other changes."""


@object_type("entries", revision=1)
class Entries(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log entries of one commit, in the order in which their changes were applied."""

    entries: tuple[LogEntry, ...]


class RecentHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An earlier head of the reference, kept for recovery."""

    time: int
    number: int
    commit: int


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Mark that stops commits to a reference because its realm is being moved, or was moved, to another store."""

    to: str
    """URI of the other store, without a password."""
    pause: str
    """Identifier of the switchover attempt that set this mark."""
    done: bool = False
    """Whether the other store already serves the realm."""


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value of a reference row."""

    commit: int
    number: int
    time: int
    floor_number: int = 0
    floor_time: int = 0
    """The fields `floor_number` and `floor_time` are the number and time (milliseconds since 1970) of the history
    floor. Commits with numbers below `floor_number` may have been swept."""
    recent: tuple[RecentHead, ...] = ()
    """This head, and earlier heads that are kept for recovery, newest first."""
    fence: int = 0
    """An id. A commit must not point to older rows (with smaller ids) that nothing points to yet: it must write them
    again under new ids."""
    sealed: bool = False
    """Whether the reference was dropped. If so, a reader must look the reference up in the registry again."""

    @property
    def given_up(self) -> bool:
        """Whether the reference was dropped so long ago that its history is no longer kept."""
        return self.sealed and not self.commit

    move: Move | None = None
    """Set while the realm is being moved to another store, and permanently after the move; stops commits."""

    time_resets: tuple[int, ...] = ()
    """Numbers of commits above the floor whose time is earlier than their parent's, ascending: the parent was made by a
    process whose clock was far ahead. Between two of these commits, times increase."""


def next_time(head: Head, parent: Commit, now_ms: int) -> tuple[int, tuple[int, ...]]:
    """Return the time of the commit that follows `head`, and the `time_resets` of the new head.

    The time is later than the parent's, with one exception. If the parent's time is far in the future, a wrong clock
    made it, and the new commit has the present time. Without this exception, the history could not be trimmed or
    searched by time until the present time reaches the parent's.
    """
    resets = head.time_resets
    if resets:
        resets = tuple(number for number in resets if number > head.floor_number)
    if parent.time > now_ms + AHEAD_MS and len(resets) < MOST_RESETS:
        return now_ms, (*resets, head.number + 1)
    return max(now_ms, parent.time + 1), resets


def child_pointers(number: int, id: int, commit: Commit) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return `parents` and `skips` of the commit that follows `commit`, which has the number `number` and id `id`."""
    parents = (id, *commit.parents[: INLINE_PARENTS - 1])
    levels = max(0, number.bit_length() - FIRST_SKIP)
    zeros = (number & -number).bit_length() - 1
    own = min(levels, max(0, zeros - FIRST_SKIP + 1))  # how many of the powers of two divide `number`
    return parents, (id,) * own + commit.skips[own:levels]
