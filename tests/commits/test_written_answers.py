"""Answers that are written to the database, for processes on other machines. Without a usable answer, they read the
commit."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ReferenceRow, Swapped
from polaris_spark.clock import ManualClock
from polaris_spark.commits import decider
from polaris_spark.commits.applier import Decision
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.decider import MOST_BYTES_OF_WRITTEN_ANSWER, Decider
from polaris_spark.commits.group import Batch, Pending
from polaris_spark.commits.intent_rows import Outcomes, WrittenAnswer
from polaris_spark.commits.intents import Intents, Published
from polaris_spark.commits.publication import Publication
from polaris_spark.commits.retry import RIVALRY_MS, Turns
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.objects import ObjectRow
from tests.mailboxes import Office

from .rivals import Rivals
from .support import Add, Requested, committer
from .test_intent_messages import Extend, Piece, Pieces, counted
from .test_swaps_in_doubt import Doubtful

Answers = Callable[[Decider, Decision, Publication], list[ObjectRow]]


def written(rivals: Rivals) -> list[WrittenAnswer]:
    """Return the answers that the slots of the newest head name."""
    return [rivals.b._store.get(id, WrittenAnswer) for id in answers_of(rivals)]


def answers_of(rivals: Rivals) -> list[int]:
    """Return the ids of these answers. Each intent has one change."""
    return [slot.answer(1) for slot in rivals.head.slots if slot.answer(1)]


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
    return lambda decider, decision, publication: []


def _with(change: Callable[[bytes], bytes]) -> Callable[[Answers], Answers]:
    """Change the encoded answer in each row."""

    def spoil(rows: Answers) -> Answers:
        def spoiled(decider: Decider, decision: Decision, publication: Publication) -> list[ObjectRow]:
            found = rows(decider, decision, publication)
            answers = decider._store.decoded(found).decoded
            return decider._store.rows(
                (id, WrittenAnswer(change(decoded.value.answer)))  # type: ignore[union-attr]
                for id, decoded, _ in answers
            )

        return spoiled

    return spoil


def _garbled(rows: Answers) -> Answers:
    def spoiled(decider: Decider, decision: Decision, publication: Publication) -> list[ObjectRow]:
        found = rows(decider, decision, publication)
        return [row._replace(value=row.value[:-1] + b"\xc1") for row in found]

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
    assert answers_of(rivals)


def test_an_answer_is_read_again_if_the_database_fails(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = Rivals(backend)
    failures = [TryAgainError("busy"), TryAgainError("busy")]
    original, read, named = Decider.written_answers, backend.read_objects, list[int]()

    def noted(decider: Decider, decision: Decision, publication: Publication) -> list[ObjectRow]:
        found = original(decider, decision, publication)
        named.extend(row.id for row in found)
        return found

    def failing(realm: str, keys: Sequence[ObjectKey]) -> dict[ObjectKey, bytes]:
        if failures and named == [key.id for key in keys]:
            raise failures.pop()
        return read(realm, keys)

    monkeypatch.setattr(Decider, "written_answers", noted)
    backend.read_objects = failing  # type: ignore[method-assign, assignment]
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(Requested("same")) == 11
    assert not failures
    assert rivals.commits() == [["same", "same"]]


def test_no_answer_is_written_in_a_realm_that_does_not_allow_it(backend: Backend) -> None:
    rivals = Rivals(backend)
    rivals.b._store._revisions = {"answer": 0}
    rivals.b._store._allowed.discard(WrittenAnswer)
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(Requested("same")) == 11
    assert not answers_of(rivals)
    assert rivals.commits() == [["same", "same"]]


def test_answers_that_do_not_fit_in_a_commit_are_left_out(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decider, "MOST_BYTES_OF_WRITTEN_ANSWERS", 10)
    rivals = Rivals(backend)
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(Requested("same")) == 11
    (id,) = answers_of(rivals)
    assert not backend.read_objects(rivals.b._store.realm, [ObjectKey(id)])


def test_the_answer_of_a_commit_that_lost_its_swap_is_not_used(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals, third = Rivals(backend), committer(backend)
    original, named = Decider.written_answers, list[int]()

    def overtaken(decider: Decider, decision: Decision, publication: Publication) -> list[ObjectRow]:
        found = original(decider, decision, publication)
        backend.write_objects(decider._store.realm, found)  # as if the answers were written before the swap
        named.extend(row.id for row in found)
        if len(named) == 1:
            with monkeypatch.context() as patched:  # a process that leaves out the intents of others
                patched.setattr(Decider, "decided", lambda self, applied, decision, slots: slots)
                third.commit(Add("same", 100))
        return found

    monkeypatch.setattr(Decider, "written_answers", overtaken)
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(Requested("same")) == 111
    assert len(set(named)) == 2
    assert answers_of(rivals) == named[1:]


def test_a_withdrawal_finds_the_answer_of_the_commit_that_came_before_it(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = Rivals(backend)
    assert isinstance(backend, Doubtful)
    handover = rivals.a._attempts._handover
    withdraw = handover.withdraw

    def late(published: Published, limit_ms: float) -> Outcomes | None:
        rivals.b.commit(Add("same", 10))
        return withdraw(published, limit_ms)

    monkeypatch.setattr(handover, "withdraw", late)
    monkeypatch.delattr(Intents, "_entries_of")  # the commit is not read
    rivals.meanwhile(lambda: backend.plan.append("full"))  # the swap with which `a` then commits fails
    assert rivals.a.commit(Requested("same")) == 11
    assert len(written(rivals)) == 1
    assert rivals.commits() == [["same", "same"]]


def test_a_commit_with_an_answer_is_continued_after_a_deadline(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next thread that leads the batch continues it with the same call."""
    rivals = Rivals(backend)
    assert isinstance(backend, Doubtful)
    attempts, clock = rivals.b._attempts, rivals.b._clock

    def commit() -> None:
        batch = Batch(Pending(Add("same", 10), clock.monotonic_ms(), 0.0, clock.signal()), None)
        backend.plan = ["before"] * 1_000
        assert isinstance(attempts.carry(batch, clock.monotonic_ms() + 20), OutcomeUnknownError)
        backend.plan = []
        assert attempts.carry(batch, clock.monotonic_ms() + 10_000) is None

    monkeypatch.delattr(Intents, "_entries_of")  # the commit is not read
    rivals.meanwhile(commit)
    assert rivals.a.commit(Requested("same")) == 11
    assert len(written(rivals)) == 1
    assert rivals.commits() == [["same", "same"]]


def test_if_the_answers_do_not_fit_in_the_transaction_all_rows_are_written_before_the_swap() -> None:
    backend = Doubtful(open_backend(f"memory:{uuid.uuid4()}"), transactional=True)
    rivals = Rivals(backend)  # type: ignore[arg-type]
    together, sizes = backend.write_and_swap, list[int]()

    def counted(
        realm: str, rows: Sequence[ObjectRow], name: str, expected: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        sizes.append(len(rows))
        return together(realm, rows, name, expected, new)

    def commit() -> None:
        sizes.clear()
        rivals.b.commit(Add("same", 10))

    backend.write_and_swap = counted  # type: ignore[method-assign]
    for fits in (True, False):
        rivals.meanwhile(commit)
        rivals.a.commit(Requested("same"))
        (id,) = answers_of(rivals)
        assert (id in backend.rows_written) is not fits
        assert len(written(rivals)) == 1
        if fits:
            backend.transaction_rows = sizes[0] - 1  # type: ignore[attr-defined]  # all rows but the answer
    assert not sizes


class Waits:
    """The waits of a process of `Rivals` for intents, while a commit takes 50 ms, and a read takes 5 ms."""

    def __init__(self, process: Committer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._attempts = process._attempts
        self._clock = clock = process._attempts._clock
        self._passed, self._pauses = 0.0, list[float]()
        mailbox, now = process._attempts._handover._mailbox, clock.monotonic_ms
        self._wait = mailbox.wait
        monkeypatch.setattr(Turns, "commit_ms", 50.0)
        monkeypatch.setattr(Intents, "read_ms", 5.0)
        # It must wait in the mailbox, which receives messages meanwhile, and not on the clock.
        monkeypatch.setattr(mailbox, "wait", self._pause)
        monkeypatch.setattr(clock, "monotonic_ms", lambda: now() + self._passed)

    def _pause(self, ms: float) -> None:
        self._pauses.append(ms)
        self._wait(ms)

    def wait_ms(self, *, since_ms: float = 0.0, changes: int = 1, left_ms: float = 1_000.0) -> float:
        """Return how long the process waits.

        Args:
            since_ms: time since it heard of the newest commit, in milliseconds.
            changes: number of its changes that wait.
            left_ms: time until its deadline, in milliseconds.
        """
        self._passed += self._attempts._turns._heard_at + since_ms - self._clock.monotonic_ms()
        self._pauses.clear()
        deadline = self._clock.monotonic_ms() + left_ms
        self._attempts._handover.await_intents(deadline, changes=changes)
        return sum(self._pauses)


def test_the_process_that_commits_waits_until_those_on_other_machines_have_written_their_next_intents(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = Rivals(backend)
    waits = Waits(rivals.b, monkeypatch)
    assert waits.wait_ms() == 0  # nothing was decided for others
    rivals.meanwhile(lambda: rivals.b.commit(Add("same")))
    rivals.a.commit(Requested("same"))
    # They read the row and the answer, and write the intent.
    usual = 2 * 5 + 50 / (1 if backend.transactional else 2)
    assert waits.wait_ms() == pytest.approx(usual)
    assert waits.wait_ms(since_ms=10) == pytest.approx(usual - 10)
    assert waits.wait_ms(since_ms=100) == 0
    assert waits.wait_ms(left_ms=7) == pytest.approx(7)
    assert waits.wait_ms(changes=2) == 0  # more than the others have
    rivals.b.commit(Add("other"))
    assert waits.wait_ms() == 0  # no intent came, so none is expected


def test_a_process_does_not_wait_for_intents_if_another_one_made_the_newest_commit(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = Rivals(backend)
    rivals.meanwhile(lambda: rivals.b.commit(Add("same")))
    rivals.a.commit(Requested("same"))
    rivals.a.read()
    assert Waits(rivals.a, monkeypatch).wait_ms() == 0


def test_for_messages_the_process_that_commits_waits_for_half_a_commit_at_most(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = Rivals(backend, office=Office())
    rivals.meanwhile(lambda: rivals.b.commit(Add("same")))
    rivals.a.commit(Requested("same"))
    waits = Waits(rivals.b, monkeypatch)
    assert waits.wait_ms() == pytest.approx(25)
    assert waits.wait_ms(left_ms=7) == pytest.approx(7)


def test_a_wait_for_intents_has_a_longest_time() -> None:
    turns = Turns.__new__(Turns)
    turns._clock, turns._heard_at = ManualClock(), 0.0
    turns._heard_at = turns._clock.monotonic_ms()
    assert turns.written_courtesy_ms(900.0, 900.0) == RIVALRY_MS
