"""Rows of a commit: the commit object, its log entries, and the value of the reference that points to the commit."""

from __future__ import annotations

import msgspec

from polaris_spark.clock import AHEAD_MS
from polaris_spark.index import IndexRoot
from polaris_spark.objects import ObjectId, Strong, Weak, object_type

INLINE_PARENTS = 20
"""Number of nearest ancestors whose ids a commit lists directly."""

MOST_RESETS = 16
"""Maximum number of commits in a history that have an earlier time than their parent. In a history that has this many,
the time of a new commit is always later than its parent's, even if the parent's clock was far ahead."""

ANSWER_BYTES = 8
"""Length of the id of an answer in `Slot.outcomes`."""

FIRST_SKIP = 4
"""Exponent of the smallest spacing of skip pointers, which is 2**FIRST_SKIP commits. Nearer ancestors are in `parents`.
"""


@object_type("commit", revision=1)
class Commit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One state of the whole content of a reference.

    `parents` are the ids of commits number-1, number-2, ... (at most 20). `skips[i]` is the id of the ancestor whose
    number is the largest multiple of 2**(i + FIRST_SKIP) below this commit's number. So any ancestor is found in O(log
    n) reads, and the skips of a new commit can be computed from its parent alone.
    """

    number: int
    time: int
    """Milliseconds since 1970; later than the parent's time, unless `Head.time_resets` contains this commit's number.
    """
    entries: Strong
    """The log entries of this commit (an `Entries` object), or 0 for a reference's first commit."""
    parents: tuple[Weak, ...] = ()
    skips: tuple[Weak, ...] = ()
    merged: tuple[Weak, ...] = ()
    """Ids of commits of other references whose content was merged into this commit."""
    index_names: tuple[str, ...] = ()
    index_roots: tuple[IndexRoot, ...] = ()
    operations_floor: int = 0
    """Time in milliseconds since 1970. Operations whose ids were made before this time, by any client, may be missing
    from the index of operations, even if they were carried out."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One change to one entity, for the audit trail, the change feed and recovery."""

    operation: bytes
    """The operation id that the client gave (16 bytes of a UUID), or empty. If the client gave none and another process
    applied the request, a UUIDv8 that identifies the request (`intent_rows.request_id`)."""
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
    """Part of the response to the client that cannot be rebuilt from the entity's content."""
    old_key: bytes = b""
    """Key of the entity before a rename; empty for other changes."""


@object_type("entries", revision=1)
class Entries(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log entries of one commit, in the order in which their changes were applied."""

    entries: tuple[LogEntry, ...]


class RecentHead(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """An earlier head of the reference, kept for recovery after a loss of data."""

    time: int
    number: int
    commit: int


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """A note in a reference's row that the realm is being moved, or was moved, to another store. It stops commits."""

    to: str
    """URI of the other store, without a password."""
    pause: str
    """Identifier of the attempt to move the realm that wrote this note."""
    done: bool = False
    """Whether the other store already serves the realm."""


class Slot(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """The place in a reference's row through which one process lets other processes carry out its changes."""

    following: ObjectId
    """Id of the object in which the process will publish its next intent. The object may not exist yet."""
    number: int
    """Number of the commit that replaced the slot last, or of the newest commit when the slot was added."""
    last: ObjectId = 0
    """Id of the process's last intent that a commit decided; 0 if there was none."""
    outcomes: bytes = b""
    """One byte for each change in the intent `last`: 1 if the commit contains the change as its process applied it, 2
    if another process applied its request (`intent_rows.Part`), 0 if the process must commit the change itself. If the
    commit wrote an answer (`intent_rows.WrittenAnswer`), its id follows, in `ANSWER_BYTES` bytes, big-endian."""

    def answer(self, changes: int) -> int:
        """Return the id of the answer to the intent `last`, which has this number of changes; 0 if none was written."""
        return int.from_bytes(self.outcomes[changes:], "big")


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """The value of a reference's row: the newest commit, and the oldest commit that is kept."""

    commit: int
    number: int
    time: int
    floor_number: int = 0
    floor_time: int = 0
    """The fields `floor_number` and `floor_time` are the number and time (milliseconds since 1970) of the oldest commit
    that is kept. Commits with lower numbers may have been deleted by a sweep."""
    recent: tuple[RecentHead, ...] = ()
    """This head, and earlier heads that are kept for recovery, newest first."""
    fence: int = 0
    """An object id. A commit must not point to objects with smaller ids that no reference points to yet, because a
    sweep may delete them. It must write these objects again under new ids."""
    sealed: bool = False
    """Whether the row was closed to commits because the reference was dropped. If so, a reader must look the reference
    up in the registry again."""

    @property
    def given_up(self) -> bool:
        """Whether the reference was dropped, and its history is no longer kept because the grace period is over."""
        return self.sealed and not self.commit

    move: Move | None = None
    """Note about a move of the realm to another store: set during the move, and permanently after it. Stops commits."""

    time_resets: tuple[int, ...] = ()
    """Numbers of kept commits whose time is earlier than their parent's, ascending: the parent was made by a process
    whose clock was far ahead. Between two of these commits, times increase."""

    slots: tuple[Slot, ...] = ()
    """Slots of the processes that recently competed to commit to this reference. Empty if only one process commits."""


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
    """Return the fields `parents` and `skips` for a child of `commit`. `number` and `id` are those of `commit`."""
    parents = (id, *commit.parents[: INLINE_PARENTS - 1])
    levels = max(0, number.bit_length() - FIRST_SKIP)
    zeros = (number & -number).bit_length() - 1
    own = min(levels, max(0, zeros - FIRST_SKIP + 1))  # how many of the powers of two divide `number`
    return parents, (id,) * own + commit.skips[own:levels]
