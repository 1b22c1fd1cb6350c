"""Changes that one process publishes and another one commits: once and with the publisher's result, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.clock import ManualClock
from polaris_spark.commits import decider, intent_rows
from polaris_spark.commits.applier import Applier
from polaris_spark.commits.change import Operation
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.intent_rows import Intent, Part
from polaris_spark.commits.publication import Publication
from polaris_spark.commits.retry import RIVALRY_COMMITS
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import (
    ClockError,
    CommitFailedError,
    HistoryTrimmedError,
    StorageFullError,
)
from polaris_spark.index import Entry
from polaris_spark.objects import ObjectRow, encode, rows_of

from .rivals import Pausing, Rivals, _overtake, compete
from .support import Add, Box, Requested, committer, number, references
from .test_swaps_in_doubt import Doubtful


def test_the_next_commit_contains_the_published_changes_of_others(rivals: Rivals) -> None:
    change = Add("mine", 5)
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(change) == 5
    assert rivals.commits() == [["theirs", "mine"]]
    assert change.runs == 1
    assert number(rivals.b, "mine") == number(rivals.a, "mine") == 5


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


def test_concurrent_changes_are_detected_without_reading_their_commits(rivals: Rivals) -> None:
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


def test_a_repeated_request_is_recognized_if_another_process_carried_it_out(rivals: Rivals) -> None:
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


def test_the_publisher_commits_its_change_itself_if_no_other_process_commits(rivals: Rivals) -> None:
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.commits() == [["mine"]]
    rivals.b.commit(Add("theirs"))
    assert rivals.commits() == [["mine"], ["theirs"]]


def test_a_refused_change_is_not_carried_out_later(rivals: Rivals, monkeypatch: pytest.MonkeyPatch) -> None:
    rivals.meanwhile(lambda: _overtake(rivals, monkeypatch))
    with pytest.raises(CommitFailedError):
        rivals.a.commit(Add("same", expect=0))
    assert len(rivals.head.slots) == 1
    rivals.b.commit(Add("same", -10))
    assert number(rivals.b, "same") == 0
    assert rivals.commits() == [["same"], ["same"]]


def test_the_change_of_an_interrupted_thread_is_committed_at_most_once(rivals: Rivals) -> None:
    rivals.meanwhile(_interrupt)
    with pytest.raises(KeyboardInterrupt):
        rivals.a.commit(Add("mine"))
    rivals.b.commit(Add("theirs"))
    rivals.a.commit(Add("again"))
    rivals.b.commit(Add("theirs"))
    assert number(rivals.a, "mine") == 1
    assert sorted(key for keys in rivals.commits() for key in keys) == ["again", "mine", "theirs", "theirs"]


@pytest.mark.parametrize("days", [0, 7])
@pytest.mark.parametrize("with_operation", [False, True], ids=["no operation id", "operation id"])
@pytest.mark.parametrize("kind", [Add, Requested])
def test_the_intent_of_a_process_that_is_gone_is_carried_out_for_some_minutes_only(
    backend: Backend, kind: type[Add], days: int, *, with_operation: bool
) -> None:
    rivals = Rivals(backend)
    id = rivals.clock.now_ms().to_bytes(6, "big") + b"\x70" * 10
    rivals.meanwhile(_interrupt)
    with pytest.raises(KeyboardInterrupt):
        rivals.a.commit(kind("mine", operation=Operation(id if with_operation else b"", "tester")))
    clock = ManualClock()
    clock.advance(days * 24 * 60 * 60_000 or decider.LATE_MS)
    later = committer(backend, clock=clock)
    later.commit(Add("theirs"))
    assert rivals.commits() == ([["theirs"]] if days else [["theirs", "mine"]])
    for _ in range(2):
        later.commit(Add("theirs"))
    assert number(later, "mine") == (0 if days else 1)


def test_the_process_of_an_intent_that_another_one_takes_for_old_commits_its_change_itself(
    rivals: Rivals,
) -> None:
    rivals.b._clock.advance(60 * 60_000)  # its clock is wrong
    rivals.meanwhile(lambda: rivals.b.commit(Add("theirs")))
    assert rivals.a.commit(Add("mine")) == 1
    assert rivals.commits() == [["theirs"], ["mine"]]


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"\x01\x00\x01\x00\x00\x00\x05abcde"])
def test_an_intent_that_cannot_be_decoded_is_ignored(rivals: Rivals, garbage: bytes) -> None:
    mine = rivals.a._attempts._intents.own
    rivals.backend.write_objects("r", [ObjectRow(mine, 0, garbage)])
    rivals.b.commit(Add("theirs"))
    assert mine in [slot.following for slot in rivals.head.slots]
    assert rivals.commits() == [["theirs"]]


_PUT = ("names", b"mine", Entry(7))
_LOGGED = LogEntry(b"", "tester", 1, "add", 7, b"mine")


@pytest.mark.parametrize(
    "part",
    [
        Part(b"", "tester", b"", (), (), (_PUT,), (_LOGGED,), (ObjectRow(2**63, 0, b""),)),
        Part(b"", "tester", b"", (), (), (_PUT,), (_LOGGED,), (ObjectRow(7, 2**63, b""),)),
        Part(b"", "tester", b"", (), (), (("names", b"mine", Entry(2**63)),), (_LOGGED,), ()),
        Part(b"", "tester", b"", (), (), (("names", b"mine", Entry(-1)),), (_LOGGED,), ()),
        Part(b"", "tester", b"", (), (), (_PUT,), (msgspec.structs.replace(_LOGGED, after=2**63),), ()),
    ],
    ids=["row", "part of a row", "pointer", "negative pointer", "logged pointer"],
)
def test_an_intent_with_numbers_that_no_store_can_hold_is_ignored(tmp_path: Path, part: Part) -> None:
    backend = open_backend(f"sqlite://{tmp_path / 'store.db'}")
    rivals = Rivals(backend)
    mine = rivals.a._attempts._intents.own
    intent = Intent(rivals.head.fence, rivals.a._ids.next_id(), intent_rows.encode((part,)))
    backend.write_objects("r", rows_of(mine, encode(intent)))
    rivals.b.commit(Add("theirs"))
    assert committer(backend).commit(Add("theirs")) == 2
    assert rivals.commits() == [["theirs"], ["theirs"]]


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


def test_an_intent_is_withdrawn_before_its_files_are_replaced(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents: list[bytes] = []
    slots: list[int] = []

    class Folder:
        def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
            contents.extend(content for _, content in files)
            slots.append(len(rivals.head.slots))

    class Filed(Add):
        def apply(self, state: State, prepared: object) -> int:
            answer = super().apply(state, prepared)
            state.write_file("file:/same", b"%d" % answer)
            return answer

    rivals = Rivals(backend, files=Folder())
    rivals.meanwhile(lambda: _overtake(rivals, monkeypatch))
    assert rivals.a.commit(Filed("same", 5)) == 15
    assert contents == [b"5", b"15"]
    assert slots == [2, 1]


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


def test_a_change_of_a_dropped_reference_is_refused(backend: Backend) -> None:
    clock = Pausing()
    first, second = references(backend, clock=clock), references(backend)
    first.create("main", Operation(b"", "tester"))
    a, b = first.open("main"), second.open("main")
    compete(a, b, clock)
    clock.meanwhile.append(lambda: second.drop("main", Operation(b"", "tester")))
    with pytest.raises(Exception, match=r"was dropped|does not exist"):
        a.commit(Add("mine"))
    assert isinstance(b, Committer)
    last = b.last()
    assert last is not None
    assert last.index("names").get(b"mine") is None


class _Blind(Add):
    """A change that reads only in `prepare`, and writes without reading again, like the load of a lazy import."""

    def prepare(self, view: State) -> object:
        found = view.lookup("names", self.name)
        return view.get(found.pointer, Box).number if found else 0

    def apply(self, state: State, prepared: object) -> int:
        assert isinstance(prepared, int)
        after = state.add(Box(prepared + self.amount))
        state.put("names", self.name, Entry(after))
        state.log(LogEntry(b"", "tester", 1, "add", 7, self.name, 0, after))
        return prepared + self.amount


def test_reads_in_prepare_are_compared_too(rivals: Rivals) -> None:
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


class _Restore(Add):
    """An addition that requires that a commit is in the history, and that the log has no later entry of entity 8."""

    def __init__(self, needed: int) -> None:
        super().__init__("restored")
        self.needed = needed
        self.prepared = 0

    def prepare(self, view: State) -> object:
        self.prepared += 1
        view.require_kept(self.needed)
        view.require_unlogged([8])
        return None


class _Log(Add):
    """An addition with a log entry of entity 8."""

    def apply(self, state: State, prepared: object) -> int:
        after = super().apply(state, prepared)
        state.log(LogEntry(b"", "tester", 1, "other", 8, self.name))
        return after


def test_a_change_that_needs_trimmed_history_is_not_carried_out_by_others(rivals: Rivals) -> None:
    def trim_and_commit() -> None:
        head = rivals.b.read()
        rivals.b.amend(lambda now: raise_floor(now, head.commit))
        rivals.b.commit(Add("theirs"))

    rivals.meanwhile(trim_and_commit)
    with pytest.raises(HistoryTrimmedError):
        rivals.a.commit(_Restore(rivals.head.number - 1))
    assert rivals.commits() == [["theirs"]]


@pytest.mark.parametrize(("theirs", "prepared"), [(Add("theirs"), 1), (_Log("theirs"), 2)])
def test_a_change_is_prepared_again_if_others_log_its_entity(
    rivals: Rivals, theirs: Add, prepared: int
) -> None:
    change = _Restore(rivals.head.number)
    rivals.meanwhile(lambda: rivals.b.commit(theirs))
    assert rivals.a.commit(change) == 1
    assert rivals.commits()[1:] == [["restored"]]
    assert change.prepared == prepared


def test_an_entity_that_an_earlier_change_of_the_batch_logged_is_not_unlogged(backend: Backend) -> None:
    one = committer(backend)
    base = one.read()
    state = State(base, references().ids.next_id)
    state.require_unlogged([8])
    reads = state.reads
    state.begin()
    _Log("undone").apply(state, None)
    state.undo()
    assert state.holds(reads)
    _Log("kept").apply(state, None)
    state.begin()
    assert not state.holds(reads)
    one.commit(_Log("committed"))
    assert State(base, one._ids.next_id).holds(reads)
    assert not State(one.read(), one._ids.next_id).holds(reads)


@pytest.mark.parametrize("commit_ms", [200.0, 1_000.0])
def test_a_process_waits_no_longer_for_a_dead_one_than_ten_commits(rivals: Rivals, commit_ms: float) -> None:
    turns = rivals.a._attempts._turns
    for _ in range(8):
        turns.tried(commit_ms)
        turns.handed_over(2 * commit_ms)
    begun = rivals.clock.monotonic_ms()
    assert rivals.a.commit(Add("mine")) == 1
    waited = rivals.clock.monotonic_ms() - begun
    assert 2 * commit_ms < waited <= RIVALRY_COMMITS * commit_ms
