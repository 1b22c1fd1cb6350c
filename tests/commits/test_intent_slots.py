"""Slots of competing processes in the row of a reference, and requests of a process for a turn."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, Swapped
from polaris_spark.commits import intents
from polaris_spark.commits.attempts import _Run
from polaris_spark.commits.files import BatchFiles
from polaris_spark.commits.group import Batch, Pending
from polaris_spark.commits.intent_rows import Intent
from polaris_spark.commits.retry import RIVALRY_MS
from polaris_spark.commits.rows import Head, RecentHead
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    CommitFailedError,
    OutcomeUnknownError,
    TryAgainError,
)
from polaris_spark.ids import unpack
from polaris_spark.system.registry import ROOT
from tests.mailboxes import Office

from .rivals import Rivals, _overtake
from .support import Add, committer, number


@pytest.mark.parametrize("carried", [True, False], ids=["carried out", "not carried out"])
def test_the_outcome_is_found_though_the_slot_was_dropped(rivals: Rivals, *, carried: bool) -> None:
    def drop() -> None:
        if carried:
            rivals.b.commit(Add("theirs"))
        rivals.b.amend(lambda head: msgspec.structs.replace(head, slots=()))
        rivals.b.commit(Add("last"))

    rivals.meanwhile(drop)
    assert rivals.a.commit(Add("mine")) == 1
    assert number(rivals.b, "mine") == 1
    assert [keys for keys in rivals.commits() if "mine" in keys] == [
        ["theirs", "mine"] if carried else ["mine"]
    ]


@pytest.mark.parametrize("carried", [True, False], ids=["carried out", "not carried out"])
def test_the_outcome_is_unknown_if_the_slot_was_dropped_and_the_history_trimmed(
    backend: Backend, *, carried: bool
) -> None:
    rivals = Rivals(backend)

    def trim() -> None:
        if carried:
            rivals.b.commit(Add("theirs"))
        rivals.b.amend(lambda head: msgspec.structs.replace(head, slots=()))
        for _ in range(2):
            rivals.b.commit(Add("last"))
        rivals.b.amend(lambda head: msgspec.structs.replace(head, slots=(), floor_number=head.number))

    rivals.meanwhile(trim)
    with pytest.raises(
        OutcomeUnknownError, match="the part of the history that would contain it was trimmed"
    ):
        rivals.a.commit(Add("mine"))
    assert number(rivals.b, "mine") == carried


def test_a_commit_that_keeps_its_own_slot_for_others_decides_an_intent_once(rivals: Rivals) -> None:
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    rivals.a.commit(Add("mine"))
    for _ in range(3):
        rivals.b.commit(Add("theirs"))
    assert rivals.commits() == [["theirs", "mine"], *[["theirs"]] * 3]


def test_a_process_asks_for_a_turn_if_its_change_is_too_large(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intents, "MOST_BYTES", 10)
    turns, change = rivals.b._attempts._turns, Add("mine")
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(change) == 1
    assert rivals.commits() == [["theirs"], ["mine"]]
    assert change.runs == 1
    assert turns.yields  # until it sees the commit of `a`


def test_a_request_for_a_turn_leaves_no_doubt(rivals: Rivals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents, "MOST_BYTES", 10)

    def drop() -> None:
        rivals.b.amend(lambda head: msgspec.structs.replace(head, slots=()))
        for _ in range(3):
            rivals.b.commit(Add("theirs"))
        rivals.b.amend(lambda head: msgspec.structs.replace(head, slots=(), floor_number=head.number))

    rivals.meanwhile(drop)
    assert rivals.a.commit(Add("mine")) == 1


def test_a_change_that_waits_for_a_turn_fails_with_its_own_error(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intents, "MOST_BYTES", 10)
    rivals.backend.plan = ["", *["busy"] * 10_000]  # type: ignore[attr-defined]  # the first swap is lost
    with pytest.raises(TryAgainError, match="nothing was changed"):
        rivals.a.commit(Add("mine"), deadline_ms=2_000)


def test_a_lost_swap_after_a_request_for_a_turn_is_not_in_doubt(rivals: Rivals) -> None:
    attempts = rivals.a._attempts
    batch = Batch(Pending(Add("mine"), 0.0, 0.0, rivals.clock.signal()), None)
    run = _Run(0.0, BatchFiles("root", None, rivals.clock))
    run.published = attempts._intents.draft_for_turn(State(rivals.a.read(), int))
    assert run.published is not None
    batch.sent = True
    attempts._unsent(batch, run)
    assert not batch.sent


def test_a_request_for_a_turn_that_is_not_needed_any_more_is_dropped(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intents, "MOST_BYTES", 10)

    rivals.meanwhile(lambda: _overtake(rivals, monkeypatch))
    with pytest.raises(CommitFailedError):
        rivals.a.commit(Add("same", expect=0))
    rivals.a.commit(Add("mine"))
    assert not rivals.a._attempts._turns.yields
    nodes = [unpack(slot.following).node for slot in rivals.head.slots]
    assert len(set(nodes)) == len(nodes)


def test_slots_of_processes_that_left_are_dropped(rivals: Rivals) -> None:
    rivals.b._clock.sleep_ms(5_000)  # nobody competes with it any more
    for _ in range(intents.SLOT_COMMITS):
        rivals.b.commit(Add("theirs"))
    assert len(rivals.head.slots) == 2
    rivals.b.commit(Add("theirs"))
    assert rivals.head.slots == ()


def test_a_process_alone_has_no_slot() -> None:
    backend = open_backend(f"memory:{uuid.uuid4()}")
    alone = committer(backend)
    for _ in range(3):
        alone.commit(Add("mine"))
    assert alone.read().head.slots == ()


def test_a_forked_process_has_no_slot(rivals: Rivals, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = rivals.a._attempts._intents
    assert kept.own
    monkeypatch.setattr(intents.os, "getpid", lambda: -1)
    assert not kept.own


def test_there_is_a_limit_of_slots(rivals: Rivals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents, "MOST_SLOTS", 2)
    third = committer(rivals.backend)
    rivals.b.commit(Add("theirs"))
    third.commit(Add("third"))
    rivals.b.commit(Add("theirs"))
    third.commit(Add("third"))
    assert len(rivals.head.slots) == 2
    assert number(rivals.b, "third") == 2


class _OldHead(msgspec.Struct, frozen=True, array_like=True):
    """The value of a reference's row in a release without slots."""

    commit: int
    number: int
    time: int
    floor_number: int = 0
    floor_time: int = 0
    recent: tuple[RecentHead, ...] = ()
    fence: int = 0
    sealed: bool = False
    move: object = None
    time_resets: tuple[int, ...] = ()


def test_a_release_without_slots_reads_the_row_and_drops_them(rivals: Rivals) -> None:
    def old() -> None:
        row = rivals.backend.read_reference("r", ROOT)
        assert row is not None
        head = msgspec.msgpack.decode(row.value, type=_OldHead)
        value = msgspec.msgpack.encode(head)
        rivals.backend.swap_reference("r", ROOT, row.version, row._replace(version=b"v" * 16, value=value))

    rivals.meanwhile(old, lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(Add("mine")) == 1
    assert sorted(key for keys in rivals.commits() for key in keys) == ["mine", "theirs"]


def test_a_process_that_was_idle_does_not_read_all_history(rivals: Rivals) -> None:
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    rivals.a.commit(Add("mine"))  # carried out by `b`
    for _ in range(3 * intents.SLOT_COMMITS):
        rivals.b.commit(Add("theirs"))
    rivals.clock.advance(10_000)
    reads = 0
    inner = rivals.backend.read_objects

    def counted(realm: str, keys: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        nonlocal reads
        reads += 1
        return inner(realm, keys)

    rivals.backend.read_objects = counted  # type: ignore[method-assign]  # to count
    assert rivals.a.commit(Add("mine")) == 2
    assert reads < 6


def _drop_slot(rivals: Rivals) -> None:
    """Let `b` carry out a change of `a`, and then commit until the slot of `a` is dropped. `a` does not learn of it."""
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    rivals.a.commit(Add("mine"))
    for _ in range(2 * intents.SLOT_COMMITS):
        rivals.b.commit(Add("theirs"))


def test_a_process_that_paused_publishes_no_intent_in_a_slot_that_was_dropped(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    _drop_slot(rivals)
    rivals.clock.advance(RIVALRY_MS / 2)  # others still compete
    assert rivals.a._attempts._turns.crowded
    monkeypatch.delattr(intents.Intents, "_searched")  # the history is not searched for the outcome
    monkeypatch.delattr(intents.Intents, "publish")
    assert rivals.a.commit(Add("mine")) == 2


def test_after_a_lost_swap_that_returned_no_row_no_intent_is_published_in_a_slot_that_was_dropped(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    _drop_slot(rivals)
    rivals.clock.advance(2 * RIVALRY_MS)  # `a` commits first, and then remembers that others compete

    def without_row(swap: Callable[..., Swapped | Conflict]) -> Callable[..., Swapped | Conflict]:
        def swapped(*arguments: object) -> Swapped | Conflict:
            outcome = swap(*arguments)
            return outcome if isinstance(outcome, Swapped) else Conflict()

        return swapped

    for name in ("swap_reference", "write_and_swap"):
        monkeypatch.setattr(rivals.backend, name, without_row(getattr(rivals.backend, name)))
    monkeypatch.delattr(intents.Intents, "_searched")  # the history is not searched for the outcome
    slots = list[bool]()
    registered = intents.Intents.registered

    def noted(self: intents.Intents, head: Head) -> Head:
        slots.append(self.own != 0)
        return registered(self, head)

    monkeypatch.setattr(intents.Intents, "registered", noted)
    assert rivals.a.commit(Add("mine")) == 2
    assert slots == [False]  # it has noticed that its slot is gone


@pytest.mark.parametrize("office", [None, Office(answers=False)], ids=["database", "messages"])
def test_a_slot_that_is_damaged_makes_the_outcome_unknown(backend: Backend, office: Office | None) -> None:
    rivals = Rivals(backend, office=office)

    def damage() -> None:
        rivals.b.commit(Add("theirs"))
        rivals.b.amend(
            lambda head: msgspec.structs.replace(
                head, slots=tuple(msgspec.structs.replace(slot, outcomes=b"\1\1\1\1") for slot in head.slots)
            )
        )

    rivals.meanwhile(damage)
    with pytest.raises(OutcomeUnknownError, match="is damaged"):
        rivals.a.commit(Add("mine"))


def test_an_intent_with_fields_of_a_later_release_is_left_to_its_process(rivals: Rivals) -> None:
    kept = rivals.a._attempts._intents
    part = [b"", "tester", b"", [], [], [], [], [], "a field that is unknown here"]
    intent = Intent(0, rivals.a._ids.next_id(), msgspec.msgpack.encode([part]))
    rows = rivals.a._store.rows([(kept.own, intent)])
    rivals.backend.write_objects("r", rows)
    rivals.b.commit(Add("theirs"))
    assert kept.own in [slot.following for slot in rivals.head.slots]
