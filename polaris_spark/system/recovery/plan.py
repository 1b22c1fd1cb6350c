"""Planning of a recovery from the results of a survey, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from polaris_spark.commits.rows import Head, RecentHead
from polaris_spark.system.recovery.survey import SurveyedReference

Action = Literal["keep", "set", "insert", "leave", "give-up"]
"""What to do with a reference. `keep`: leave a complete head unchanged. `set`: set the row to another head. `insert`:
insert a missing row. `leave`: no commit of the reference is complete; leave it unchanged, so that its remaining data
can be read and the lost data can be restored from a backup. `give-up`: no commit is complete and the registry does not
list the reference; seal its row."""

Registry = Literal["", "list", "drop"]
"""Change to make in the registry. `list`: register a reference that is not registered. `drop`: mark a reference as
dropped, because its row is sealed although it is registered as live. Empty: no change."""


class RecoveryStep(NamedTuple):
    """Step of a recovery plan for one reference."""

    found: SurveyedReference
    action: Action
    head: Head | None
    """For `set` and `insert`: the head to set. On top of it, the recovery adds a commit that records the recovery,
    unless the head is sealed or is the first head of the reference. For other actions: the head in the row."""
    registry: Registry
    why: str
    """Message with the reason for the step; empty if there is nothing to do."""


def plan(found: Sequence[SurveyedReference]) -> list[RecoveryStep]:
    """Return one step for each of the surveyed references, in the same order. The first must be the registry."""
    return [_step(one) for one in found]


def _step(found: SurveyedReference) -> RecoveryStep:
    if found.target is None or found.history_from is None:
        action: Action = "give-up" if found.state == "unlisted" else "leave"
        return RecoveryStep(found, action, found.head, "", "no remaining commit is complete")
    registry, why = _registry(found)
    if found.head is None:
        why = "the row is missing"
        return RecoveryStep(found, "insert", _head(found), registry, why)
    if found.target.id != found.head.commit:
        number, newest = found.target.number, found.heads[0]
        if number > found.head.number:
            why = f"commit {number:,} was requested"
        elif newest.complete:
            why = f"commit {number:,} was requested; {found.undone.commits:,} later ones are undone"
        elif newest.lost[0].id == newest.known.id:
            why = f"commit {found.head.number:,} is lost"
        else:
            why = f"commit {found.head.number:,} needs lost rows"
        return RecoveryStep(found, "set", _head(found), registry, why)
    if found.history_from.number > found.head.floor_number:
        why = f"history before commit {found.history_from.number:,} needs lost rows"
        return RecoveryStep(found, "set", _head(found), registry, why)
    return RecoveryStep(found, "keep", found.head, registry, why)


def _registry(found: SurveyedReference) -> tuple[Registry, str]:
    if found.state == "unlisted":
        return "list", "the registry does not list it"
    if found.state == "live" and found.head is not None and found.head.sealed:
        return "drop", "the registry lost the record of its drop"
    return "", ""


def _head(found: SurveyedReference) -> Head:
    """Return a head that points to the commit `found.target`. Its history is the complete part of the target's history,
    and its recent heads are the surveyed heads in that part."""
    target, first, before = found.target, found.history_from, found.head
    assert target is not None
    assert first is not None
    registration = found.registered.registration if found.registered else None
    floor_number, floor_time = 0, 0
    if before is not None:
        floor_number, floor_time = before.floor_number, before.floor_time
    elif registration is not None:
        floor_number, floor_time = registration.floor_number, registration.floor_time
    if first.number > floor_number:
        floor_number, floor_time = first.number, first.time
    recent = [
        RecentHead(state.known.time, state.known.number, state.known.id)
        for state in found.heads
        if floor_number <= state.known.number < target.number
    ]
    return Head(
        target.id,
        target.number,
        target.time,
        floor_number,
        floor_time,
        (RecentHead(target.time, target.number, target.id), *recent),
        before.fence if before is not None else 0,
        before.sealed if before is not None else False,
        time_resets=found.time_resets,
    )
