"""Messages with intents and answers. Lost, late, repeated or invalid messages do not change any outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from polaris_spark.backends.base import Backend, ObjectKey, ReferenceRow
from polaris_spark.commits import decider, head_reader, intents, publication
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.rows import LogEntry, Slot
from polaris_spark.commits.state import State
from polaris_spark.index import Entry
from polaris_spark.objects import Strong, object_type
from tests.mailboxes import Office

from .rivals import Rivals
from .support import Add, Box, Requested, committer


def test_intents_are_sent_as_messages_instead_of_rows(backend: Backend) -> None:
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
    """A change that turns out to change nothing."""

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
        setattr(backend, name, counted(getattr(backend, name), name, reads))
    rivals.meanwhile(commit)
    assert rivals.a.commit(mine) == (33 if requested else 3)
    assert not reads
    assert rivals.commits()[-1] == [theirs.name.decode(), mine.name.decode()]


def test_an_answer_that_comes_during_a_read_of_the_row_saves_further_reads(backend: Backend) -> None:
    rivals = Rivals(backend, office=Office())
    for _ in range(2):
        rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
        rivals.a.commit(Requested("same"))
    reads: list[str] = []
    row = rivals.a._heads.row

    def row_after_a_commit() -> object:
        rivals.a._heads.row = row  # type: ignore[method-assign]
        rivals.b.commit(Add("same", 10))
        backend.read_objects = counted(backend.read_objects, "", reads)  # type: ignore[method-assign, assignment]
        return row()

    rivals.a._heads.row = row_after_a_commit  # type: ignore[method-assign, assignment]
    assert rivals.a.commit(Requested("same")) == 33
    assert not reads
    assert rivals.commits()[-1] == ["same", "same"]


@object_type("test-piece", revision=1)
class Piece(msgspec.Struct, frozen=True, array_like=True):
    """An object of which the objects of later changes are parts, too."""

    text: bytes


@object_type("test-pieces", revision=1)
class Pieces(msgspec.Struct, frozen=True, array_like=True):
    number: int
    pieces: tuple[Strong, ...]


class Extend(Requested):
    """Add a piece, and return the texts of all pieces as their number."""

    def apply(self, state: State, prepared: object) -> int:
        self.runs += 1
        found = state.lookup("names", self.name)
        pieces = state.get(found.pointer, Pieces).pieces if found else ()
        after = state.add(Pieces(len(pieces) + 1, (*pieces, state.add(Piece(bytes(self.amount))))))
        state.put("names", self.name, Entry(after))
        state.log(LogEntry(self.operation.id, self.operation.principal, 1, "add", 7, self.name, 0, after))
        return after

    def from_request(self, request: bytes, operation: Operation) -> Extend | None:
        name, amount, _ = msgspec.msgpack.decode(request)
        return Extend(name.decode(), amount, operation=operation)

    def repeat(self, state: State, entries: list[LogEntry]) -> int:
        return entries[-1].after


@pytest.mark.parametrize("amount", [10, 20_000], ids=["small", "too large together"])
def test_an_answer_contains_what_the_changed_object_consists_of(backend: Backend, amount: int) -> None:
    rivals = Rivals(backend, office=Office())
    for _ in range(2):  # the first time, the process applies its change itself
        rivals.meanwhile(lambda: rivals.b.commit(Extend("same", amount)))
        pointer = rivals.a.commit(Extend("same", amount))
    store, reads = rivals.a._store, list[str]()
    backend.read_objects = counted(backend.read_objects, "read_objects", reads)  # type: ignore[method-assign,assignment]  # to count
    pieces = store.get(pointer, Pieces).pieces
    assert [len(store.get(piece, Piece).text) for piece in pieces] == [amount] * 4
    assert bool(reads) == (amount > 10)


def counted(read: Callable[..., object], name: str, reads: list[str]) -> Callable[..., object]:
    def called(*args: object) -> object:
        reads.append(name)
        return read(*args)

    return called


def _of_another_intent(answer: bytes) -> bytes:
    """An answer whose row has a head without the slot of the intent."""
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


def test_intents_of_processes_that_send_messages_are_rarely_looked_up_in_the_database(
    backend: Backend,
) -> None:
    rivals = Rivals(backend, office=Office())
    rivals.b._attempts._intents._mailbox._heard.add(rivals.a._ids.node())
    reads: list[str] = []
    backend.read_objects = counted(backend.read_objects, "", reads)  # type: ignore[method-assign, assignment]
    counts = []
    for _ in range(2 * decider.LOOKS_EVERY):
        before = len(reads)
        rivals.b.commit(Add("theirs"))
        counts.append(len(reads) - before)
    assert sorted(counts) == [0] * (2 * decider.LOOKS_EVERY - 2) + [1, 1]


def test_one_read_in_three_commits_looks_for_the_intents_of_all_slots(backend: Backend) -> None:
    office = Office()
    rivals = Rivals(backend, office=office)
    rivals.b.amend(
        lambda head: msgspec.structs.replace(head, slots=(*head.slots, Slot(rivals.a._ids.next_id(), 0)))
    )
    rivals.b._attempts._intents._mailbox._heard.add(rivals.a._ids.node())
    reads: list[str] = []
    backend.read_objects = counted(backend.read_objects, "", reads)  # type: ignore[method-assign, assignment]
    for _ in range(2 * decider.LOOKS_EVERY):
        rivals.b.commit(Add("theirs"))
    assert len(reads) == 2


@pytest.mark.parametrize("when", ["before a look at the row", "during a look at the row"])
def test_an_answer_does_not_replace_a_later_row(
    backend: Backend, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_reader, "MOST_FORECASTS", 0)
    rivals = Rivals(backend, office=Office())

    row = rivals.a._heads.row

    def amend() -> None:
        rivals.b.commit(Add("theirs"))
        rivals.b.amend(lambda head: msgspec.structs.replace(head, floor_number=1))
        rivals.a._heads.read()  # another thread did

    def row_after_amending() -> object:
        rivals.a._heads.row = row  # type: ignore[method-assign]
        amend()
        return row()

    if when.startswith("before"):
        rivals.meanwhile(amend)
    else:
        rivals.a._heads.row = row_after_amending  # type: ignore[method-assign, assignment]
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.a._heads.known().head.floor_number == 1


def test_answers_that_were_not_needed_are_not_kept(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    rivals = Rivals(backend, office=Office())
    monkeypatch.setattr(intents.Intents, "answer", lambda self, published: None)
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(Add("mine")) == 1
    assert not rivals.a._attempts._intents._mailbox._answers
