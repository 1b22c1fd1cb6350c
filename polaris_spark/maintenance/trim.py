"""Trimming of history: raises the floors of references, so that a sweep may delete what only older commits need.

The floor is the oldest commit of a reference that is kept. Every commit from the floor to the head is kept, with all
objects that it points to. The new floor is the newest commit that is older than the retention period, so that the state
at the beginning of this period can still be read. An attempt to read the state of an older commit fails with an error
that says that the history was trimmed. The log of older commits is archived first (`log_archive`).

No commit that is younger than the retention period is below the floor, even if the times of commits go back because a
clock was behind. A branch can keep its history for longer, or keep a minimum number of commits (`Registration.keep_ms`
and `keep_commits`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from polaris_spark.commits.change import Operation
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.log import ancestor, last_before
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import InputError, ReferenceGoneError
from polaris_spark.maintenance.log_archive import archive_log, remove_old_logs
from polaris_spark.maintenance.periods import Policy
from polaris_spark.property_values import duration_text
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.lost_rows import strict_reader
from polaris_spark.system.registrations import Registered
from polaris_spark.system.registry import ROOT, References

_NOBODY = Operation(b"", "")

_LOOKUPS = 3
"""Maximum number of times that a trim opens a reference, if other processes repeatedly drop and recreate it."""


class Trimmed(NamedTuple):
    """A reference whose floor (the oldest commit that is kept) was raised, or in a dry run would be raised."""

    reference: str
    before: int
    """Number of the commit that was the floor before."""
    after: int
    """Number of the commit that is the new floor."""
    time: int
    """Time of the commit at the new floor, in milliseconds since 1970."""


class _Age(NamedTuple):
    """The part of history to trim: commits made before `limit_ms`, except the newest ones. `now_ms` is the present
    time.

    Times are in milliseconds since 1970.
    """

    limit_ms: int
    now_ms: int
    commits: int = 0
    """Number of commits before the newest one that are kept in any case."""


def check_retention(retention_ms: int, *, grace_ms: int, operation_lifetime_ms: int) -> None:
    """Raise an error if history would be kept for less time than other features need it.

    Args:
        retention_ms: minimum time for which history is kept, in milliseconds.
        grace_ms: minimum time for which unreachable rows and dropped references are kept, in milliseconds.
        operation_lifetime_ms: time for which a repeated operation is recognized, in milliseconds.
    Raises:
        InputError: `retention_ms` is shorter than one of the other periods.
    """
    for name, least in (("grace", grace_ms), ("idempotency-key-lifetime", operation_lifetime_ms)):
        if retention_ms < least:
            raise InputError(
                f"history cannot be trimmed to {duration_text(retention_ms)}: the property {name!r} requires that "
                f"it is kept for at least {duration_text(least)}; give a longer retention"
            )


def trim(
    references: References,
    policy: Policy,
    operation: Operation = _NOBODY,
    *,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[Trimmed]:
    """Raise the floor of the registry and of every live reference to the newest commit older than the retention period,
    and archive the log of the commits below it. Remove old logs from the archive.

    The floor of a dropped reference is not raised: a sweep deletes its whole history when the grace period has passed.
    After an interruption, call this function again.

    Args:
        policy: how long history and the log are kept. A reference can have a longer period of its own for its history.
        operation: names the principal.
        dry_run: whether to write nothing, and only return the floors that would be raised.
        progress: called with the number of references that are done, and the total.
    Returns:
        the references whose floor was raised, the registry last.
    Raises:
        ClockError: this machine's clock jumped ahead.
    """
    now = references.ids.now_ms()
    live = [one for one in references.listed() if one.registration.state == "live"]
    done: list[Trimmed] = []
    for position, registered in enumerate([*live, None]):
        progress(position, len(live) + 1)
        name = ROOT if registered is None else registered.name
        kept_ms = policy.retention_of(name)
        age = _Age(now - kept_ms, now)
        if registered is not None:
            own = registered.registration
            age = _Age(now - max(kept_ms, own.keep_ms), now, own.keep_commits)
        if dry_run:
            trimmed = _would_trim(references, registered, age)
        else:
            trimmed = _trim_one(references, registered, age, policy.log_of(name), operation)
        if trimmed is not None:
            done.append(trimmed)
    if not dry_run:
        remove_old_logs(references, policy.log_of, operation, now_ms=now)
    return done


def _would_trim(references: References, registered: Registered | None, age: _Age) -> Trimmed | None:
    reader = strict_reader(references.store, references.clock)
    head = references.root.read().head if registered is None else reader.head_of(registered)
    floor = None if head.sealed else _new_floor(references.store, head, age)
    return None if floor is None else _trimmed(registered, head, floor)


def _trim_one(
    references: References, registered: Registered | None, age: _Age, log_ms: int, operation: Operation
) -> Trimmed | None:
    """Trim one reference. Archive the log of the commits below the new floor, unless they are all older than `log_ms`,
    the time for which the log is kept."""
    name = ROOT if registered is None else registered.name
    for _ in range(_LOOKUPS):
        # A committer always reads and changes the same row, even if a new reference now has the name.
        try:
            committer = references.root if registered is None else references.open(name)
        except ReferenceGoneError:  # dropped meanwhile
            return None
        try:
            at = committer.read()
            head = at.head
            floor = _new_floor(references.store, head, age)
            if floor is not None and log_ms and floor.time >= age.now_ms - log_ms:
                archive_log(references, name, at, before=floor.number, operation=operation)
            if floor is not None:
                _raise(committer, floor)
        except ReferenceGoneError:
            references.forget(name)
            continue
        return None if floor is None else _trimmed(registered, head, floor)
    return None


def _trimmed(registered: Registered | None, head: Head, floor: Commit) -> Trimmed:
    name = ROOT if registered is None else registered.name
    return Trimmed(name, head.floor_number, floor.number, floor.time)


def _new_floor(store: ObjectStore, head: Head, age: _Age) -> Commit | None:
    """Return the newest commit that was made before the limit; None if the floor is already at this commit or above."""
    found = last_before(store, head, age.limit_ms, age.now_ms)
    commit = None if found is None else store.get(found, Commit)
    most = head.number - age.commits
    if commit is not None and commit.number > most:
        commit = store.get(ancestor(store, head, most), Commit) if most > head.floor_number else None
    return commit if commit is not None and commit.number > head.floor_number else None


def _raise(committer: Committer, floor: Commit) -> None:
    committer.amend(lambda head: head if head.sealed else raise_floor(head, floor))
