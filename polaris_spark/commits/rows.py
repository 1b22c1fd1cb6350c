"""What a commit is made of: the commit object, its log entries, and the value of the reference that points to it."""

from __future__ import annotations

import msgspec

from polaris_spark.clock import AHEAD_MS
from polaris_spark.index import IndexRoot
from polaris_spark.objects import Strong, Weak, object_type

INLINE_PARENTS = 20
"""How many ancestors a commit names directly."""

MOST_RESETS = 16
"""Largest number of times that time may go back in a history. After that, commit times stay above a wrong clock's."""

FIRST_SKIP = 4
"""Skip pointers begin at 2**FIRST_SKIP: nearer ancestors are inline parents."""


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
    """Commits of other references whose content this one merged."""
    index_names: tuple[str, ...] = ()
    index_roots: tuple[IndexRoot, ...] = ()
    operations_floor: int = 0
    """Milliseconds since 1970: what was done under operation ids made earlier may be forgotten, whoever made them."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One change to one entity: audit trail, change feed and recovery in one row."""

    operation: bytes
    """The operation id that the client gave (16 bytes of a UUID), or empty."""
    principal: str
    time: int
    """Milliseconds since 1970, fixed when the change was prepared."""
    action: str
    entity: int
    """Stable entity id."""
    key: bytes
    """Key of the entity in the index `names` (after the change; before it, for a drop)."""
    before: Strong = 0
    after: Strong = 0
    """The entity's content before and after; 0 where it did not exist or no longer does."""
    summary: dict[str, str] = {}
    result: bytes = b""
    """What of the answer cannot be rebuilt from the content."""
    old_key: bytes = b""
    """For a rename: the key before it."""


@object_type("entries", revision=1)
class Entries(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log entries of one commit, in the order in which their changes were applied."""

    entries: tuple[LogEntry, ...]


class RecentHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A head that the reference had, kept for recovery."""

    time: int
    number: int
    commit: int


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a reference takes no commits: its realm is on its way to another store, or there already."""

    to: str
    """That store's URI, without a password."""
    pause: str
    """The one attempt to switch over that set this mark."""
    done: bool = False
    """Whether the realm is served there by now."""


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value of a reference row."""

    commit: int
    number: int
    time: int
    floor_number: int = 0
    floor_time: int = 0
    """The history floor: commits below `floor_number` may have been swept."""
    recent: tuple[RecentHead, ...] = ()
    """Newest first."""
    fence: int = 0
    """An id: rows prepared before it must be written again under new ids."""
    sealed: bool = False
    """The reference was dropped: look in the registry again."""

    @property
    def given_up(self) -> bool:
        """Whether it was dropped so long ago that nothing of its history is kept."""
        return self.sealed and not self.commit

    move: Move | None = None
    """Set while commits are stopped, or for ever: the realm is moved to another store."""

    time_resets: tuple[int, ...] = ()
    """Numbers of commits above the floor whose time is earlier than their parent's, ascending: the parent was made by a
    process whose clock was far ahead. Between them, times increase."""


def next_time(head: Head, parent: Commit, now_ms: int) -> tuple[int, tuple[int, ...]]:
    """The time of the commit after a head, and the time resets of its head.

    The time is later than the parent's. But if the parent's time lies far ahead, a wrong clock made it, and time goes
    back to now. Otherwise history could not be trimmed or searched by time until that time has come.
    """
    resets = head.time_resets
    if resets:
        resets = tuple(number for number in resets if number > head.floor_number)
    if parent.time > now_ms + AHEAD_MS and len(resets) < MOST_RESETS:
        return now_ms, (*resets, head.number + 1)
    return max(now_ms, parent.time + 1), resets


def child_pointers(number: int, id: int, commit: Commit) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Parents and skips of a commit that follows `commit` (number `number`, id `id`)."""
    parents = (id, *commit.parents[: INLINE_PARENTS - 1])
    levels = max(0, number.bit_length() - FIRST_SKIP)
    zeros = (number & -number).bit_length() - 1
    own = min(levels, max(0, zeros - FIRST_SKIP + 1))  # how many of the powers of two divide `number`
    return parents, (id,) * own + commit.skips[own:levels]
