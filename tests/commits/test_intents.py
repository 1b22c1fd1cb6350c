"""Changes that one process publishes and another carries out: once, with the publisher's result, or not at all."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ReferenceRow
from polaris_spark.clock import ManualClock
from polaris_spark.commits import decider, head_reader, intents, log, publication
from polaris_spark.commits.applier import Applier
from polaris_spark.commits.attempts import _Run
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.decider import Decider
from polaris_spark.commits.files import BatchFiles
from polaris_spark.commits.group import Batch, Pending
from polaris_spark.commits.intent_rows import Intent
from polaris_spark.commits.publication import Publication
from polaris_spark.commits.rows import Head, LogEntry, RecentHead
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    ClockError,
    CommitFailedError,
    OutcomeUnknownError,
    StorageFullError,
    TryAgainError,
)
from polaris_spark.ids import unpack
from polaris_spark.index import Entry
from polaris_spark.objects import ObjectRow
from polaris_spark.system.registry import ROOT
from tests.mailboxes import Office

from .support import Add, Box, Requested, committer, number, references
from .test_swaps_in_doubt import Doubtful


class Pausing(ManualClock):
    """A clock whose pauses let others act: each calls the next function of `meanwhile`."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []

    def sleep_ms(self, duration: float) -> None:
        super().sleep_ms(duration)
        if self.meanwhile:
            self.meanwhile.pop(0)()


class Rivals:
    """Two processes that compete for one reference. `b` made the newest commit, and both have slots."""

    def __init__(self, backend: Backend, **settings: object) -> None:
        self.backend = backend
        self.clock = Pausing()
        self.a = committer(backend, clock=self.clock, **settings)
        self.b = committer(backend, office=settings.get("office"))
        for one in (self.a, self.b, self.a, self.b):  # each finds that the other was first
            one.commit(Add("warm"))
        assert len(self.head.slots) == 2

    @property
    def head(self) -> Head:
        return committer(self.backend).read().head

    def meanwhile(self, *acts: Callable[[], object]) -> None:
        """Let these happen while `a` waits for its intent to be decided, one after each look."""
        self.clock.meanwhile += acts

    def commits(self) -> list[list[str]]:
        """Return the keys that each commit changed, oldest first, without those that made them rivals."""
        head = committer(self.backend).read()
        found: dict[int, list[str]] = {}
        for _, commit, _, entry in log.entries(head.store, head.head):
            if entry.key != b"warm":
                found.setdefault(commit.number, []).insert(0, entry.key.decode())
        return [found[number] for number in sorted(found)]


@pytest.fixture(params=[True, False], ids=["with transactions", "rows first, then swap"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return Doubtful(open_backend(f"memory:{uuid.uuid4()}"), transactional=request.param)  # type: ignore[return-value]


@pytest.fixture(params=["database", "messages", "messages without answers"])
def rivals(backend: Backend, request: pytest.FixtureRequest) -> Rivals:
    office = Office(answers=request.param == "messages")
    return Rivals(backend, office=None if request.param == "database" else office)


def test_the_next_commit_contains_what_others_published(rivals: Rivals) -> None:
    change = Add("mine", 5)
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(change) == 5
    assert rivals.commits() == [["theirs", "mine"]]
    assert change.runs == 1
    assert number(rivals.b, "mine") == number(rivals.a, "mine") == 5


def test_messages_take_the_place_of_rows(backend: Backend) -> None:
    office = Office()
    rivals = Rivals(backend, office=office)
    before = office.carried
    for count in (1, 2):
        mine = rivals.a._attempts._intents.own
        rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
        assert rivals.a.commit(Add("mine")) == count
        assert office.carried - before == count
        assert not backend.read_objects("r", [ObjectKey(mine)])
    assert rivals.commits() == [["theirs", "mine"]] * 2


def test_a_process_that_lost_its_node_number_during_the_swap_still_reports_success(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, remember = rivals.b._ids, Publication.remember

    def lost() -> int:
        raise ClockError("this machine's clock is wrong")

    def remember_and_lose(publication: Publication) -> None:
        remember(publication)
        monkeypatch.setattr(ids, "node", lost)
        monkeypatch.setattr(ids, "next_id", lost)

    monkeypatch.setattr(Publication, "remember", remember_and_lose)
    assert rivals.b.commit(Add("theirs")) == 1
    assert rivals.commits() == [["theirs"]]


class Large(Add):
    """A change whose intent is too large for a message."""

    def apply(self, state: State, prepared: object) -> int:
        state.put("names", self.name + b"/large", Entry(1, bytes(90_000)))
        return super().apply(state, prepared)


def test_an_intent_that_is_too_large_for_a_message_is_found_in_the_database(backend: Backend) -> None:
    rivals = Rivals(backend, office=Office())
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    rivals.a.commit(Add("mine"))
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    rivals.a.commit(Large("mine"))
    assert rivals.commits() == [["theirs", "mine"]] * 2


def test_an_intent_whose_message_was_lost_is_written_after_two_commits(backend: Backend) -> None:
    office = Office(lambda: True)
    rivals = Rivals(backend, office=office)
    for _ in range(3 - rivals.head.number % 3):  # the commit after the next two does not read all
        rivals.b.commit(Add("warm"))
    rivals.b._attempts._intents._mailbox._heard.add(rivals.a._ids.node())  # as after messages that arrived
    mine = rivals.a._attempts._intents.own
    theirs = [lambda: rivals.b.commit(Add("theirs"))] * 4
    rivals.meanwhile(*theirs)
    assert rivals.a.commit(Add("mine")) == 1
    assert backend.read_objects("r", [ObjectKey(mine)])
    assert ["theirs", "mine"] in rivals.commits()


class Nothing(Add):
    """A change that finds that there is nothing to do."""

    def apply(self, state: State, prepared: object) -> int:
        found = state.lookup("names", self.name)
        return state.get(found.pointer, Box).number if found else 0


@pytest.mark.parametrize("repeated", [False, True], ids=["nothing to do", "repeated"])
def test_a_change_without_effect_beside_one_that_is_handed_over_is_answered(
    rivals: Rivals, repeated: bool
) -> None:
    operation = Operation(rivals.clock.now_ms().to_bytes(6, "big") + b"\x70" * 10, "tester", b"d")
    first = Add("old", 3, operation=operation)
    rivals.b.commit(first)
    other: Change[object, int] = Add("old", 3, operation=operation) if repeated else Nothing("old")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(rivals.a.commit(other)))

    class WithAnother(Add):
        def apply(self, state: State, prepared: object) -> int:
            if not thread.ident:
                thread.start()
                while not rivals.a._attempts.group._waiting:
                    time.sleep(0.001)
            return super().apply(state, prepared)

    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(WithAnother("mine")) == 1
    thread.join(30)
    assert answers == [3]
    assert rivals.commits()[-1] == ["theirs", "mine"]


def test_a_process_waits_for_another_one_whose_change_it_left_out(backend: Backend) -> None:
    rivals = Rivals(backend)
    turns, clock = rivals.b._attempts._turns, rivals.b._clock
    rivals.meanwhile(lambda: rivals.b.commit(Add("x")))
    assert rivals.a.commit(Add("x")) == 2  # left out, and committed by its process
    assert turns.yields
    begun, most = clock.monotonic_ms(), turns.yield_ms()
    rivals.b._attempts._handover.yield_turn(float("inf"))
    assert clock.monotonic_ms() - begun < most
    assert turns.yield_ms() == most
    assert not turns.yields


def test_a_process_does_not_wait_long_for_one_that_does_not_commit(backend: Backend) -> None:
    rivals = Rivals(backend)
    turns = rivals.b._attempts._turns
    turns.yield_to([rivals.a._ids.node()])
    begun = turns._clock.monotonic_ms()
    most = turns.yield_ms()
    assert rivals.b.commit(Add("y")) == 1
    assert most <= turns._clock.monotonic_ms() - begun <= 2 * most
    assert not turns.yields
    assert turns.yield_ms() > most  # the other one gets more time


def test_a_message_that_is_lost_loses_no_change(backend: Backend) -> None:
    rivals = Rivals(backend, office=Office(lambda: True))
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.commits() == [["theirs"], ["mine"]]


@pytest.mark.parametrize(
    "requested", [False, True], ids=["applied by its process", "applied from its request"]
)
def test_a_process_that_gets_an_answer_reads_nothing(backend: Backend, *, requested: bool) -> None:
    rivals = Rivals(backend, office=Office())
    theirs, mine = Add("same" if requested else "theirs", 10), Requested("same" if requested else "mine")
    for _ in range(2):  # the first time, the process applies its change itself
        rivals.meanwhile(lambda: rivals.b.commit(theirs))
        rivals.a.commit(mine)
    reads: list[str] = []

    def commit() -> None:
        before = list(reads)
        rivals.b.commit(theirs)
        reads[:] = before

    for name in ("read_reference", "read_objects"):
        setattr(backend, name, _counted(getattr(backend, name), name, reads))
    rivals.meanwhile(commit)
    assert rivals.a.commit(mine) == (33 if requested else 3)
    assert not reads
    assert rivals.commits()[-1] == [theirs.name.decode(), mine.name.decode()]


def _counted(read: Callable[..., object], name: str, reads: list[str]) -> Callable[..., object]:
    def counted(*args: object) -> object:
        reads.append(name)
        return read(*args)

    return counted


def _of_another_intent(answer: bytes) -> bytes:
    """An answer with the row of a head that has no slot of the intent."""
    row, entries, rows = msgspec.msgpack.decode(answer)
    head = msgspec.structs.replace(publication.read_head(ReferenceRow(*row), "main"), slots=())
    return msgspec.msgpack.encode(((row[0], publication.encode_head(head)), entries, rows))


def _without_entries(answer: bytes) -> bytes:
    row, _, rows = msgspec.msgpack.decode(answer, type=tuple[Any, dict[int, Any], Any])
    return msgspec.msgpack.encode((row, {}, rows))


def _with_a_broken_row(answer: bytes) -> bytes:
    row, entries, rows = msgspec.msgpack.decode(answer, type=tuple[Any, dict[int, Any], Any])
    return msgspec.msgpack.encode((row, entries, [[id, part, b"?"] for id, part, _ in rows]))


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda answer: b"",
        lambda answer: b"\xff" + answer,
        _of_another_intent,
        _without_entries,
        _with_a_broken_row,
    ],
    ids=["empty", "no answer", "another intent's", "without entries", "with a broken row"],
)
def test_an_answer_that_cannot_be_used_is_replaced_by_a_read(
    backend: Backend, spoiled: Callable[[bytes], bytes]
) -> None:
    rivals = Rivals(backend, office=Office())
    mailbox, answered = rivals.b._attempts._intents._mailbox, list[int]()
    answer = mailbox.answer

    def spoil(node: int, id: int, message: bytes) -> None:
        answered.append(id)
        answer(node, id, spoiled(message))

    mailbox.answer = spoil  # type: ignore[method-assign]
    for count in (1, 2):
        rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
        assert rivals.a.commit(Requested("same")) == 11 * count
    assert rivals.commits() == [["same", "same"]] * 2
    assert len([id for id in answered if id]) == 2


def test_an_intent_is_sent_again_if_another_process_commits(backend: Backend) -> None:
    office = Office()
    rivals = Rivals(backend, office=office)
    third = committer(backend, office=office)

    def take_over() -> None:
        office.loses = lambda: True
        third.commit(Add("third"))
        office.loses = lambda: False

    rivals.meanwhile(take_over, lambda: third.commit(Add("theirs")))
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.commits() == [["third"], ["theirs", "mine"]]


def test_an_intent_is_written_if_the_process_that_commits_cannot_be_reached(backend: Backend) -> None:
    office = Office()
    rivals = Rivals(backend, office=office)
    mine = rivals.a._attempts._intents.own
    office.boxes.clear()
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.commits() == [["theirs", "mine"]]
    assert backend.read_objects("r", [ObjectKey(mine)])


@pytest.mark.parametrize("way", ["database", "messages"])
def test_a_process_that_hands_over_does_not_read_each_commit(backend: Backend, way: str) -> None:
    rivals = Rivals(backend, office=Office() if way == "messages" else None)
    cache = rivals.a._store._cache
    for round in range(1, 2 * head_reader.MOST_FORECASTS):
        rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
        assert rivals.a.commit(Add("mine")) == round
    commits = [rivals.head.commit, *rivals.a.read().commit.parents]
    known = sum(cache.get((rivals.a._store._space, id)) is not None for id in commits[1:])
    assert known <= 2
    assert rivals.commits() == [["theirs", "mine"]] * (2 * head_reader.MOST_FORECASTS - 1)


def test_what_others_changed_meanwhile_is_seen_though_their_commits_were_not_read(rivals: Rivals) -> None:
    for _ in range(3):
        rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
        rivals.a.commit(Add("mine"))
    rivals.meanwhile(lambda: rivals.b.commit(Add("other")))
    assert rivals.a.commit(Add("theirs", 10)) == 13
    assert number(rivals.b, "theirs") == 13


def test_an_error_is_found_on_the_newest_head_only(rivals: Rivals) -> None:
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    rivals.a.commit(Add("mine"))
    rivals.b.commit(Add("theirs"))
    assert rivals.a.commit(Add("theirs", expect=2)) == 3  # on the forecast, it would be 1
    with pytest.raises(CommitFailedError, match="holds 3, not 1"):
        rivals.a.commit(Add("theirs", expect=1))


def test_a_repeated_request_is_recognized_whoever_carried_it_out(rivals: Rivals) -> None:
    operation = Operation(bytes.fromhex("0195a0000000700080000000000000aa"), "somebody", b"digest")
    operation = operation._replace(id=rivals.clock.now_ms().to_bytes(6, "big") + operation.id[6:])
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(Add("mine", 5, operation=operation)) == 5
    for one in (rivals.a, rivals.b):
        assert one.commit(Add("mine", 5, operation=operation)) == 5
    assert rivals.commits() == [["theirs", "mine"]]


def test_an_operation_is_carried_out_once_though_its_intent_is_still_there(rivals: Rivals) -> None:
    id = rivals.clock.now_ms().to_bytes(6, "big") + bytes.fromhex("700080000000000000aa")
    operation = Operation(id, "somebody", b"digest")
    rivals.meanwhile(lambda: rivals.b.commit(Add("mine", 5, operation=operation)))
    assert rivals.a.commit(Add("mine", 5, operation=operation)) == 5
    assert rivals.commits() == [["mine"]]


def test_a_change_is_prepared_again_if_the_commit_changed_what_it_had_read(rivals: Rivals) -> None:
    change = Add("same")
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(change) == 11
    assert rivals.commits() == [["same"], ["same"]]
    assert change.runs == 2


def test_a_change_is_carried_out_whole_or_not_at_all(rivals: Rivals) -> None:
    first = Add("free")
    second = Add("taken")
    batch = [first, second]
    results: list[int] = []

    class Both(Add):
        def apply(self, state: State, prepared: object) -> int:
            results[:] = [one.apply(state, None) for one in batch]
            return sum(results)

    rivals.meanwhile(lambda: rivals.b.commit(Add("taken", 10)))
    assert rivals.a.commit(Both("both")) == 12  # a change is made whole or not at all
    assert rivals.commits() == [["taken"], ["free", "taken"]]


def test_nobody_commits_so_the_publisher_does(rivals: Rivals) -> None:
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.commits() == [["mine"]]
    rivals.b.commit(Add("theirs"))
    assert rivals.commits() == [["mine"], ["theirs"]]


def _overtake(rivals: Rivals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `b` commit as a release that knows no intents."""
    with monkeypatch.context() as patched:
        patched.setattr(Decider, "decided", lambda self, applied, decision, slots: slots)
        rivals.b.commit(Add("same", 10))


def test_a_refused_change_is_not_carried_out_later(rivals: Rivals, monkeypatch: pytest.MonkeyPatch) -> None:
    rivals.meanwhile(lambda: _overtake(rivals, monkeypatch))
    with pytest.raises(CommitFailedError):
        rivals.a.commit(Add("same", expect=0))
    assert len(rivals.head.slots) == 1
    rivals.b.commit(Add("same", -10))
    assert number(rivals.b, "same") == 0
    assert rivals.commits() == [["same"], ["same"]]


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


def test_a_commit_that_keeps_its_own_slot_for_others_decides_an_intent_once(rivals: Rivals) -> None:
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    rivals.a.commit(Add("mine"))
    for _ in range(3):
        rivals.b.commit(Add("theirs"))
    assert rivals.commits() == [["theirs", "mine"], *[["theirs"]] * 3]


def test_who_is_interrupted_may_have_his_change_carried_out_once(rivals: Rivals) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    rivals.meanwhile(interrupt)
    with pytest.raises(KeyboardInterrupt):
        rivals.a.commit(Add("mine"))
    rivals.b.commit(Add("theirs"))
    rivals.a.commit(Add("again"))
    rivals.b.commit(Add("theirs"))
    assert number(rivals.a, "mine") == 1
    assert sorted(key for keys in rivals.commits() for key in keys) == ["again", "mine", "theirs", "theirs"]


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\x01\x00\x01\x00\x00\x00\x05abcde"])
def test_an_intent_that_cannot_be_decoded_harms_nobody(rivals: Rivals, garbage: bytes) -> None:
    mine = rivals.a._attempts._intents.own
    rivals.backend.write_objects("r", [ObjectRow(mine, 0, garbage)])
    rivals.b.commit(Add("theirs"))
    assert mine in [slot.following for slot in rivals.head.slots]
    assert rivals.commits() == [["theirs"]]


def test_a_fence_makes_the_publisher_prepare_again(rivals: Rivals) -> None:
    def fence() -> None:
        rivals.b.amend(lambda head: msgspec.structs.replace(head, fence=rivals.b._ids.next_id()))
        rivals.b.commit(Add("theirs"))

    rivals.meanwhile(fence)
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.commits() == [["theirs"], ["mine"]]


def test_the_publisher_writes_its_files(backend: Backend) -> None:
    written: list[str] = []

    class Folder:
        def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
            written.extend(location for location, _ in files)

    class Filed(Add):
        def apply(self, state: State, prepared: object) -> int:
            state.write_file("file:/mine", b"content")
            return super().apply(state, prepared)

    rivals = Rivals(backend, files=Folder())
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))  # `b` has no file writer at all
    assert rivals.a.commit(Filed("mine")) == 1
    assert rivals.commits() == [["theirs", "mine"]]
    assert written == ["file:/mine"]


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


def test_silent_processes_that_send_messages_are_seldom_looked_for(backend: Backend) -> None:
    rivals = Rivals(backend, office=Office())
    rivals.b._attempts._intents._mailbox._heard.add(rivals.a._ids.node())
    reads: list[str] = []
    backend.read_objects = _counted(backend.read_objects, "", reads)  # type: ignore[method-assign, assignment]
    counts = []
    for _ in range(2 * decider.LOOKS_EVERY):
        before = len(reads)
        rivals.b.commit(Add("theirs"))
        counts.append(len(reads) - before)
    assert sorted(counts) == [0] * (2 * decider.LOOKS_EVERY - 2) + [1, 1]


def test_an_answer_does_not_replace_a_later_row(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_reader, "MOST_FORECASTS", 0)
    rivals = Rivals(backend, office=Office())

    def amend() -> None:
        rivals.b.commit(Add("theirs"))
        rivals.b.amend(lambda head: msgspec.structs.replace(head, floor_number=1))
        rivals.a._heads.read()  # another thread did

    rivals.meanwhile(amend)
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.a._heads.known().head.floor_number == 1


def test_answers_that_were_not_needed_are_not_kept(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    rivals = Rivals(backend, office=Office())
    monkeypatch.setattr(intents.Intents, "answer", lambda self, published: None)
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(Add("mine")) == 1
    assert not rivals.a._attempts._intents._mailbox._answers


def test_a_process_waits_longer_for_a_slow_one_that_another_overtook(backend: Backend) -> None:
    rivals = Rivals(backend)
    third, turns = committer(backend), rivals.b._attempts._turns
    turns.yield_to([rivals.a._ids.node()])
    most = turns.yield_ms()
    clock = Pausing()
    clock.meanwhile = [lambda: third.commit(Add("theirs"))]
    handover = rivals.b._attempts._handover
    handover._clock = clock
    handover.yield_turn(float("inf"))
    assert turns.yield_ms() > most


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
    """The value of a reference's row in a release that knows no slots."""

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


def test_a_dropped_reference_is_told_and_the_change_is_not_made(backend: Backend) -> None:
    clock = Pausing()
    first, second = references(backend, clock=clock), references(backend)
    first.create("main", Operation(b"", "tester"))
    a, b = first.open("main"), second.open("main")
    for one in (a, b, a, b):
        one.commit(Add("warm"))
    clock.meanwhile.append(lambda: second.drop("main", Operation(b"", "tester")))
    with pytest.raises(Exception, match=r"was dropped|does not exist"):
        a.commit(Add("mine"))
    assert isinstance(b, Committer)
    last = b.last()
    assert last is not None
    assert last.index("names").get(b"mine") is None


class _Blind(Add):
    """A change that reads only in `prepare`, and writes without looking again, as the load of a lazy import does."""

    def prepare(self, view: State) -> object:
        found = view.lookup("names", self.name)
        return view.get(found.pointer, Box).number if found else 0

    def apply(self, state: State, prepared: object) -> int:
        assert isinstance(prepared, int)
        after = state.add(Box(prepared + self.amount))
        state.put("names", self.name, Entry(after))
        state.log(LogEntry(b"", "tester", 1, "add", 7, self.name, 0, after))
        return prepared + self.amount


def test_what_a_change_read_in_prepare_counts(rivals: Rivals) -> None:
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(_Blind("same")) == 11
    assert number(rivals.b, "same") == 11


@pytest.mark.parametrize("step", ["full", "broken"])
def test_an_error_that_is_reported_withdraws_the_intent(backend: Backend, step: str) -> None:
    rivals = Rivals(backend)
    assert isinstance(backend, Doubtful)
    rivals.meanwhile(lambda: backend.plan.append(step))  # the swap with which `a` then commits fails
    with pytest.raises((StorageFullError, RuntimeError)):
        rivals.a.commit(Add("mine"))
    rivals.b.commit(Add("theirs"))
    assert rivals.commits() == [["theirs"]]


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


def test_a_change_that_cannot_be_redone_is_left_out(rivals: Rivals, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise RecursionError("deep")

    def carry() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Applier, "redo", broken)
            rivals.b.commit(Add("theirs"))

    rivals.meanwhile(carry)
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.commits() == [["theirs"], ["mine"]]
