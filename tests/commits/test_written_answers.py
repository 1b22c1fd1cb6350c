"""Answers that are written to the database, for processes on other machines. Without a usable answer, they read the
commit."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from polaris_spark.backends.base import Backend
from polaris_spark.commits.applier import Decision
from polaris_spark.commits.decider import MOST_BYTES_OF_WRITTEN_ANSWER, Decider
from polaris_spark.commits.intent_rows import WrittenAnswer
from polaris_spark.commits.publication import Publication
from polaris_spark.commits.retry import Turns
from polaris_spark.errors import TryAgainError
from polaris_spark.store.objects import ObjectRows
from tests.mailboxes import Office

from .rivals import Rivals
from .support import Add, Requested, committer
from .test_intent_messages import Extend, Piece, Pieces, counted

Answers = Callable[[Decider, Decision, Publication], ObjectRows]


def written(rivals: Rivals) -> list[WrittenAnswer]:
    """Return the answers that the slots of the newest head name."""
    slots = rivals.head.slots
    return [rivals.b._store.get(slot.answer, WrittenAnswer) for slot in slots if slot.answer]


def test_a_process_on_another_machine_reads_only_the_row_and_the_answer(backend: Backend) -> None:
    rivals = Rivals(backend)
    for _ in range(2):  # the first time, the process applies its change itself
        rivals.meanwhile(lambda: rivals.b.commit(Extend("same", 10)))
        rivals.a.commit(Extend("same", 10))
    reads: list[str] = []

    def commit() -> None:
        rivals.b.commit(Extend("same", 10))
        reads.clear()

    for name in ("read_reference", "read_objects"):
        setattr(backend, name, counted(getattr(backend, name), name, reads))
    rivals.meanwhile(commit)
    pointer = rivals.a.commit(Extend("same", 10))
    store = rivals.a._store
    pieces = store.get(pointer, Pieces).pieces
    assert [len(store.get(piece, Piece).text) for piece in pieces] == [10] * 6
    assert reads == ["read_reference", "read_objects"]
    assert rivals.commits() == [["same", "same"]] * 3


def test_no_answer_is_written_for_a_change_that_is_included_as_it_is(backend: Backend) -> None:
    rivals = Rivals(backend)
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    rivals.a.commit(Requested("mine"))
    assert rivals.commits() == [["theirs", "mine"]]
    assert not written(rivals)


def test_no_answer_is_written_for_a_process_that_messages_reach(backend: Backend) -> None:
    rivals = Rivals(backend, office=Office())
    rivals.meanwhile(lambda: rivals.b.commit(Add("same")))
    rivals.a.commit(Requested("same"))
    assert rivals.commits() == [["same", "same"]]
    assert not written(rivals)


@pytest.mark.parametrize("larger", [False, True])
def test_no_answer_is_written_for_large_objects(backend: Backend, *, larger: bool) -> None:
    rivals = Rivals(backend)
    amount = MOST_BYTES_OF_WRITTEN_ANSWER if larger else MOST_BYTES_OF_WRITTEN_ANSWER // 2
    for turn in (1, 2):
        rivals.meanwhile(lambda: rivals.b.commit(Extend("same")))
        pointer = rivals.a.commit(Extend("same", amount))
        assert rivals.a._store.get(pointer, Pieces).number == 2 * turn
        assert len(written(rivals)) == (0 if larger else 1)
    assert rivals.commits() == [["same", "same"]] * 2


def _missing(rows: Answers) -> Answers:
    return lambda decider, decision, publication: ObjectRows()


def _with(change: Callable[[bytes], bytes]) -> Callable[[Answers], Answers]:
    """Change the encoded answer in each row."""

    def spoil(rows: Answers) -> Answers:
        def spoiled(decider: Decider, decision: Decision, publication: Publication) -> ObjectRows:
            return decider._store.rows(
                (id, WrittenAnswer(change(decoded.value.answer)))
                for id, decoded, _ in rows(decider, decision, publication).decoded
            )

        return spoiled

    return spoil


def _garbled(rows: Answers) -> Answers:
    def spoiled(decider: Decider, decision: Decision, publication: Publication) -> ObjectRows:
        found = rows(decider, decision, publication)
        found[:] = [row._replace(value=row.value[:-1] + b"\xc1") for row in found]
        return found

    return spoiled


def _without_entries(answer: bytes) -> bytes:
    row, _, rows = msgspec.msgpack.decode(answer, strict=False, type=tuple[object, dict[int, object], object])
    return msgspec.msgpack.encode((row, {}, rows))


@pytest.mark.parametrize(
    "spoil",
    [_missing, _garbled, _with(lambda answer: b""), _with(_without_entries)],
    ids=["missing", "garbled", "empty", "without entries"],
)
def test_an_answer_that_cannot_be_used_is_replaced_by_reads_of_the_commit(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Answers], Answers]
) -> None:
    rivals = Rivals(backend)
    monkeypatch.setattr(Decider, "written_answers", spoil(Decider.written_answers))
    for turn in (1, 2):
        rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
        assert rivals.a.commit(Requested("same")) == 11 * turn
    assert rivals.commits() == [["same", "same"]] * 2
    assert [slot for slot in rivals.head.slots if slot.answer]


def test_an_answer_is_read_again_if_the_database_fails(backend: Backend) -> None:
    rivals = Rivals(backend)
    failures = [TryAgainError("busy"), TryAgainError("busy")]
    read = rivals.a._store.get

    def failing(id: int, cls: type) -> object:
        if cls is WrittenAnswer and failures:
            raise failures.pop()
        return read(id, cls)

    rivals.a._store.get = failing  # type: ignore[method-assign, assignment]
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(Requested("same")) == 11
    assert not failures
    assert rivals.commits() == [["same", "same"]]


def test_the_answer_of_a_commit_that_lost_its_swap_is_not_used(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals, third = Rivals(backend), committer(backend)
    original, named = Decider.written_answers, list[int]()

    def overtaken(decider: Decider, decision: Decision, publication: Publication) -> ObjectRows:
        found = original(decider, decision, publication)
        backend.write_objects(decider._store.realm, found)  # as if the answers were written before the swap
        named.extend(id for id, *_ in found.decoded)
        if len(named) == 1:
            with monkeypatch.context() as patched:  # a process that leaves out the intents of others
                patched.setattr(Decider, "decided", lambda self, applied, decision, slots: slots)
                third.commit(Add("same", 100))
        return found

    monkeypatch.setattr(Decider, "written_answers", overtaken)
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(Requested("same")) == 111
    assert len(set(named)) == 2
    assert [slot.answer for slot in rivals.head.slots if slot.answer] == named[1:]


@pytest.mark.parametrize("office", [None, Office()], ids=["database", "messages"])
@pytest.mark.parametrize("name", ["same", "theirs"])
def test_the_process_that_commits_waits_until_those_on_other_machines_have_written_their_next_intents(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, office: Office | None, name: str
) -> None:
    rivals = Rivals(backend, office=office)
    monkeypatch.setattr(Turns, "commit_ms", 50.0)
    rivals.meanwhile(lambda: rivals.b.commit(Add(name)))
    rivals.a.commit(Requested("same"))
    pauses: list[float] = []
    clock, handover = rivals.b._attempts._clock, rivals.b._attempts._handover
    passed = rivals.b._attempts._turns._heard_at + 10 - clock.monotonic_ms()
    sleep, now = clock.sleep_ms, clock.monotonic_ms
    monkeypatch.setattr(clock, "sleep_ms", lambda duration: (pauses.append(duration), sleep(duration)))
    monkeypatch.setattr(clock, "monotonic_ms", lambda: now() + passed)
    for_messages = [] if office is None else [25.0]
    handover.await_intents()
    # They read the row, and the answer to a request, and write the intent.
    operations = 3 if name == "same" else 2
    in_commit = 1 if backend.transactional else 2
    assert pauses == pytest.approx(for_messages or [operations * 50 / in_commit - 10])
    rivals.b.commit(Add("other"))  # decides nothing for others
    pauses.clear()
    handover.await_intents()
    assert pauses == pytest.approx(for_messages)
