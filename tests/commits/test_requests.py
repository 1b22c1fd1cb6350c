"""Requests for changes that conflict with others. The process that commits applies them once; otherwise their own
process does."""

from __future__ import annotations

import time
import uuid

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.clock import SystemClock
from polaris_spark.commits import intents, log
from polaris_spark.commits.applier import SLOW_MS
from polaris_spark.commits.change import Operation
from polaris_spark.commits.group import Pending
from polaris_spark.commits.intent_rows import request_id
from polaris_spark.commits.settings import PROTECTED, PROTECTION
from polaris_spark.commits.state import State
from polaris_spark.errors import CommitFailedError, OutcomeUnknownError, ProtectedBranchError, TryAgainError
from polaris_spark.index import Entry
from polaris_spark.objects import Strong, object_type
from tests.mailboxes import Office

from .rivals import Rivals
from .support import Add, Requested, number
from .test_swaps_in_doubt import Doubtful


@pytest.fixture(params=["database", "messages", "messages without answers"])
def rivals(request: pytest.FixtureRequest) -> Rivals:
    backend: Backend = Doubtful(open_backend(f"memory:{uuid.uuid4()}"), transactional=True)  # type: ignore[assignment]
    office = Office(answers=request.param == "messages")
    return Rivals(backend, office=None if request.param == "database" else office)


def operation(rivals: Rivals, last: bytes = b"\x01") -> Operation:
    return Operation(rivals.clock.now_ms().to_bytes(6, "big") + b"\x70" * 9 + last, "tester", b"d")


def logged(rivals: Rivals) -> list[bytes]:
    """Return the operation of each log entry, oldest first, without the changes that set up the competition."""
    head = rivals.b.read()
    return [entry.operation for *_, entry in log.entries(head.store, head.head) if entry.key != b"warm"][::-1]


def test_a_change_that_conflicts_is_in_the_same_commit(rivals: Rivals) -> None:
    change = Requested("same", 5)
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(change) == 15
    assert rivals.commits() == [["same", "same"]]
    assert change.runs == 1
    assert number(rivals.a, "same") == 15
    first, second = logged(rivals)
    assert not first
    assert uuid.UUID(bytes=second).version == 8


def test_the_next_changes_are_not_applied_by_their_process(rivals: Rivals) -> None:
    for turn in range(3):
        change = Requested("same", 5)
        rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
        assert rivals.a.commit(change) == 15 * (turn + 1)
        assert change.runs == (0 if turn else 1)
    assert rivals.commits() == [["same", "same"]] * 3


def test_from_time_to_time_a_process_applies_its_change_itself_again(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intents, "MOST_REQUESTS", 3)
    runs = []
    for turn in range(8):
        change = Requested("same", 5)
        rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
        assert rivals.a.commit(change) == 15 * (turn + 1)
        runs.append(change.runs)
        rivals.a.read()
    assert runs == [1, 0, 0, 0, 1, 0, 0, 0]


def test_a_request_that_fails_fails_for_its_client(rivals: Rivals) -> None:
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    with pytest.raises(CommitFailedError, match="holds 10, not 0"):
        rivals.a.commit(Requested("same", expect=0))
    assert rivals.commits() == [["same"]]
    assert not rivals.b._attempts._turns.yields


class Protect(Add):
    """A change that protects the reference."""

    onto_protected = True

    def apply(self, state: State, prepared: object) -> int:
        state.put(PROTECTION, PROTECTED, Entry(value=b"\x01"))
        return super().apply(state, prepared)


@pytest.mark.parametrize("kind", [Add, Requested])
@pytest.mark.parametrize("onto_protected", [False, True])
def test_a_process_does_not_carry_out_changes_of_others_against_a_protection(
    rivals: Rivals, kind: type[Add], onto_protected: bool
) -> None:
    change = kind("other", 5)
    change.onto_protected = onto_protected
    rivals.meanwhile(lambda: rivals.b.commit(Protect("same", 10)))
    if onto_protected:
        assert rivals.a.commit(change) == 5
    else:
        with pytest.raises(ProtectedBranchError):
            rivals.a.commit(change)
    assert number(rivals.b, "other") == (5 if onto_protected else 0)


class Filed(Requested):
    """A change that writes a file."""

    def from_request(self, request: bytes, operation: Operation) -> Add:
        name, amount, _ = msgspec.msgpack.decode(request)
        return Filed(name.decode(), amount, operation=operation)

    def apply(self, state: State, prepared: object) -> int:
        state.write_file("file:/one", b"content")
        return super().apply(state, prepared)


def test_a_request_that_writes_files_is_left_to_its_process(rivals: Rivals) -> None:
    written: list[str] = []

    class Folder:
        def write_all(self, files: object) -> None:
            written.append("file")

    for one in (rivals.a, rivals.b):
        one._attempts._files = Folder()
    rivals.meanwhile(lambda: rivals.b.commit(Filed("same", 10)))
    assert rivals.a.commit(Filed("same", 5)) == 15
    assert rivals.commits() == [["same"], ["same"]]
    assert len(written) == 3


def test_a_process_that_commits_itself_again_sends_no_requests(rivals: Rivals) -> None:
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    rivals.a.commit(Requested("same", 5))
    assert rivals.a._attempts._intents.sends_requests
    rivals.clock.advance(60_000)
    rivals.a.commit(Requested("same", 5))
    assert not rivals.a._attempts._intents.sends_requests
    assert number(rivals.b, "same") == 20


class Other(Add):
    """A change of a process with other settings."""

    def from_request(self, request: bytes, operation: Operation) -> None:
        return None


class Broken(Add):
    def from_request(self, request: bytes, operation: Operation) -> Add:
        raise msgspec.DecodeError("truncated")


@pytest.mark.parametrize("theirs", [Other, Broken], ids=["other settings", "cannot be decoded"])
def test_a_request_that_another_process_cannot_make_is_left_to_its_own(
    rivals: Rivals, theirs: type[Add]
) -> None:
    rivals.meanwhile(lambda: rivals.b.commit(theirs("same", 10)))
    assert rivals.a.commit(Requested("same", 5)) == 15
    assert rivals.commits() == [["same"], ["same"]]
    assert rivals.b._attempts._turns.yields
    assert number(rivals.b, "same") == 15


class Heavy(Requested):
    """A change whose object has too many pointers to be written."""

    def from_request(self, request: bytes, operation: Operation) -> Add:
        return Heavy("mine", 1, operation=operation)

    def apply(self, state: State, prepared: object) -> int:
        answer = super().apply(state, prepared)
        if self.operation.id:  # it has an id only in another process
            state.add(Wide((1 << 50,) * 400_000))
        return answer


@object_type("test-wide", revision=1)
class Wide(msgspec.Struct, frozen=True, array_like=True):
    pointers: tuple[Strong, ...]


def test_a_request_whose_objects_cannot_be_written_does_not_affect_other_changes(rivals: Rivals) -> None:
    rivals.meanwhile(lambda: rivals.b.commit(Heavy("mine", 10)))
    assert rivals.a.commit(Heavy("mine", 1)) == 11
    assert rivals.commits() == [["mine"], ["mine"]]
    assert number(rivals.b, "mine") == 11


def test_requests_are_left_out_if_they_are_too_large(rivals: Rivals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents, "MOST_BYTES_OF_REQUEST", 4)
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(Requested("mine", 5)) == 5
    rivals.meanwhile(lambda: rivals.b.commit(Add("mine", 10)))
    assert rivals.a.commit(Requested("mine", 5)) == 20
    assert rivals.commits() == [["theirs", "mine"], ["mine"], ["mine"]]


class Slow(Requested):
    """A change that takes too long when another process applies it."""

    def from_request(self, request: bytes, operation: Operation) -> Add:
        return Slow("same", 5, operation=operation)

    def apply(self, state: State, prepared: object) -> int:
        answer = super().apply(state, prepared)
        if self.operation.id:  # it has an id only in another process
            time.sleep(SLOW_MS / 500)
            state.check_time()
        return answer


def test_a_request_that_takes_too_long_is_left_to_its_process(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SystemClock()
    monkeypatch.setattr(rivals.b._attempts._applier, "_clock", clock)
    rivals.meanwhile(lambda: rivals.b.commit(Slow("same", 10)))
    assert rivals.a.commit(Slow("same", 5)) == 15
    assert rivals.commits() == [["same"], ["same"]]


def test_a_request_that_takes_no_longer_than_two_commits_is_carried_out(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(8):
        rivals.b._attempts._turns.tried(400.0)  # the database is far away
    monkeypatch.setattr(rivals.b._attempts._applier, "_clock", SystemClock())
    rivals.meanwhile(lambda: rivals.b.commit(Slow("same", 10)))
    assert rivals.a.commit(Slow("same", 5)) == 15
    assert rivals.commits() == [["same", "same"]]


class SlowToPrepare(Requested):
    """A change whose preparation takes too long when another process applies it."""

    applied_elsewhere = False

    def from_request(self, request: bytes, operation: Operation) -> Add:
        return SlowToPrepare("same", 5, operation=operation)

    def prepare(self, view: State) -> object:
        if self.operation.id:
            time.sleep(SLOW_MS / 500)
        return None

    def apply(self, state: State, prepared: object) -> int:
        SlowToPrepare.applied_elsewhere |= bool(self.operation.id)
        return super().apply(state, prepared)


def test_a_request_whose_preparation_takes_too_long_is_left_to_its_process(
    rivals: Rivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowToPrepare, "applied_elsewhere", False)
    monkeypatch.setattr(rivals.b._attempts._applier, "_clock", SystemClock())
    rivals.meanwhile(lambda: rivals.b.commit(SlowToPrepare("same", 10)))
    assert rivals.a.commit(SlowToPrepare("same", 5)) == 15
    assert rivals.commits() == [["same"], ["same"]]
    assert not SlowToPrepare.applied_elsewhere


@pytest.mark.parametrize("has_id", [True, False], ids=["with operation id", "without"])
@pytest.mark.parametrize("carried", [True, False], ids=["applied", "not applied"])
def test_the_outcome_is_found_though_the_slot_was_dropped(
    rivals: Rivals, *, carried: bool, has_id: bool
) -> None:
    def drop() -> None:
        if carried:
            rivals.b.commit(Add("same", 10))
        rivals.b.amend(lambda head: msgspec.structs.replace(head, slots=()))
        rivals.b.commit(Add("last"))

    rivals.meanwhile(drop)
    change = Requested("same", 5, operation=operation(rivals) if has_id else None)
    assert rivals.a.commit(change) == (15 if carried else 5)
    assert [keys for keys in rivals.commits() if "same" in keys] == [
        ["same", "same"] if carried else ["same"]
    ]


def test_a_repeated_request_is_recognized(rivals: Rivals) -> None:
    same = operation(rivals)
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(Requested("same", 5, operation=same)) == 15
    assert rivals.b.commit(Add("same", 5, operation=same)) == 15
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(Requested("same", 5, operation=same)) == 15
    assert rivals.a.commit(Requested("same", 5, operation=operation(rivals, b"\x02"))) == 30
    assert number(rivals.b, "same") == 30


def test_an_operation_that_another_process_carried_out_before_is_not_applied_again(rivals: Rivals) -> None:
    same = operation(rivals)
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    rivals.a.commit(Requested("same", 5))  # from now on, only requests are sent
    assert rivals.b.commit(Add("same", 5, operation=same)) == 20
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    assert rivals.a.commit(Requested("same", 5, operation=same)) == 20
    assert number(rivals.b, "same") == 30


def test_changes_of_one_operation_are_not_sent_as_requests(rivals: Rivals) -> None:
    same = operation(rivals)
    head = rivals.a.read()
    state = State(head, rivals.a._ids.next_id)
    clock = rivals.clock
    pendings = [Pending(Requested("same", 5, operation=same), 0.0, 0.0, clock.signal()) for _ in range(2)]
    assert rivals.a._attempts._intents.draft_of_requests(state, pendings[:1]) is not None
    assert rivals.a._attempts._intents.draft_of_requests(state, pendings) is None
    unable = [Pending(Add("same"), 0.0, 0.0, clock.signal())]
    assert rivals.a._attempts._intents.draft_of_requests(state, unable) is None


class Unreadable(Requested):
    """A change whose result cannot be read back for some time."""

    failures = 0

    def repeat(self, state: State, entries: list[object]) -> int:  # type: ignore[override]  # not used
        if self.failures:
            self.failures -= 1
            raise TryAgainError("busy")
        return super().repeat(state, entries)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("failures", [2, 10**9], ids=["for a moment", "until the deadline"])
def test_a_result_that_cannot_be_read_does_not_fail_the_change(rivals: Rivals, failures: int) -> None:
    change = Unreadable("same", 5)
    change.failures = failures
    rivals.meanwhile(lambda: rivals.b.commit(Add("same", 10)))
    if failures > 2:
        with pytest.raises(OutcomeUnknownError):
            rivals.a.commit(change, deadline_ms=1_000)
    else:
        assert rivals.a.commit(change) == 15
    assert rivals.commits() == [["same", "same"]]


def test_request_ids_differ() -> None:
    ids = {request_id(intent, position) for intent in range(20) for position in range(20)}
    assert len(ids) == 400
    assert {uuid.UUID(bytes=id).variant for id in ids} == {uuid.RFC_4122}
