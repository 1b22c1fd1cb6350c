"""Processes take turns at one reference, according to the ids of the last commits."""

from __future__ import annotations

import random

import msgspec

from polaris_spark.clock import ManualClock
from polaris_spark.commits.retry import LOSS_RIVALRIES, RIVALRY_COMMITS, RIVALRY_MS, YIELD_MS, Turns
from polaris_spark.commits.rows import Commit, Head, Slot
from polaris_spark.commits.state import CommitReader
from polaris_spark.ids import IdGenerator, IdParts, Lease, pack

MINE, OTHER, THIRD = 1, 2, 3


class _Node:
    """The lease of one node."""

    def acquire(self, after_ms: int) -> Lease:
        return Lease(MINE, after_ms + 1, after_ms + 10**9)

    def renew(self, lease: Lease) -> Lease:
        return lease

    def release(self, lease: Lease, last_id: int) -> None:
        pass


class Stage:
    """The waiting times of a process on node `MINE`, with heads whose last commits were made by given nodes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.turns = Turns(IdGenerator(_Node(), self.clock), self.clock, random.Random(1))

    def head(self, *nodes: int, ago_ms: int = 0) -> CommitReader:
        """Return a head whose commit is of the first node, and its parents of the others. All are `ago_ms` old."""
        now = self.clock.now_ms()
        ids = [
            pack(IdParts(now - (ago_ms if place else 0), node, 50 - place))
            for place, node in enumerate(nodes)
        ]
        commit = Commit(9, now, 0, tuple(ids[1:]))
        return CommitReader(None, b"v", Head(ids[0], 9, now), commit)  # type: ignore[arg-type]  # nothing is read

    def pause(self, head: CommitReader, attempt: int = 0, age_ms: float = 0.0) -> float:
        """Return the mean of many pauses."""
        return sum(self.turns.pause_ms(head, attempt, age_ms) for _ in range(400)) / 400


def test_a_process_alone_never_waits() -> None:
    stage = Stage()
    assert stage.pause(stage.head(MINE, MINE)) == 0
    assert stage.pause(stage.head(OTHER, OTHER)) == 0  # others made commits, but none came in between


def test_other_processes_count_as_rivals_until_they_made_no_commit_for_a_while() -> None:
    stage = Stage()
    stage.turns.lost()
    assert stage.turns.contended
    stage.clock.advance(RIVALRY_MS)
    assert not stage.turns.contended
    assert stage.pause(stage.head(MINE, OTHER)) == 0


def test_only_a_second_loss_soon_after_the_first_shows_that_others_commit_all_the_time() -> None:
    stage = Stage()
    turns = stage.turns
    for _ in range(3):
        turns.lost()
        assert turns.contended
        assert not turns.crowded
        assert stage.pause(stage.head(MINE, OTHER)) == 0
        stage.clock.advance(LOSS_RIVALRIES * RIVALRY_MS)
    turns.lost()
    turns.won()
    turns.lost()
    assert not turns.crowded
    stage.clock.advance(3 * RIVALRY_MS)  # a slow attempt
    turns.lost()
    assert turns.crowded
    stage.clock.advance(RIVALRY_MS / 2)
    turns.handed_over(1.0)
    stage.clock.advance(RIVALRY_MS / 2)
    assert turns.crowded
    turns.waited_in_vain()
    assert not turns.crowded
    turns.lost()
    assert not turns.crowded


def test_other_processes_count_as_rivals_for_longer_if_commits_take_long() -> None:
    stage = Stage()
    turns = stage.turns
    short = turns.yield_ms()
    for _ in range(100):
        turns.tried(RIVALRY_MS)
    _crowd(stage)
    stage.clock.advance(0.9 * RIVALRY_COMMITS * RIVALRY_MS)
    assert turns.contended
    assert turns.crowded
    assert short < YIELD_MS < RIVALRY_MS < turns.yield_ms()  # the other one can commit meanwhile
    assert max(turns.patience(slots=2) for _ in range(100)) > RIVALRY_MS
    stage.clock.advance(0.2 * RIVALRY_COMMITS * RIVALRY_MS)
    assert not turns.contended


def test_an_outage_of_the_database_makes_no_wait_long() -> None:
    turns = Stage().turns
    turns.tried(60_000.0)
    assert turns.commit_ms <= RIVALRY_MS
    turns.tried(5.0)
    assert turns.commit_ms == 5.0
    for _ in range(100):
        turns.tried(60_000.0)
    assert turns.patience(slots=2) <= RIVALRY_COMMITS * RIVALRY_MS
    assert turns.yield_ms() <= 4 * RIVALRY_MS
    for _ in range(100):
        turns.handed_over(5.0)  # the database is fast again
    assert turns.commit_ms < 10
    assert turns.patience(slots=2) <= RIVALRY_MS


def test_a_change_that_was_handed_over_counts_like_a_lost_swap() -> None:
    stage = Stage()
    stage.turns.handed_over(1.0)
    stage.clock.advance(2 * RIVALRY_MS)
    assert not stage.turns.crowded
    stage.turns.lost()
    assert stage.turns.crowded


def test_processes_with_more_than_their_share_of_commits_wait_longer_and_those_with_none_do_not_wait() -> (
    None
):
    stage = Stage()
    _crowd(stage)
    greedy = stage.pause(stage.head(MINE, MINE, MINE, OTHER))
    fair = stage.pause(stage.head(MINE, OTHER, MINE, OTHER))
    assert greedy > fair > 0
    assert stage.pause(stage.head(OTHER, OTHER, OTHER)) == 0


def test_waits_are_longer_if_more_processes_take_turns() -> None:
    stage = Stage()
    _crowd(stage)
    two = stage.pause(stage.head(MINE, OTHER, MINE, OTHER, MINE, OTHER))
    three = stage.pause(stage.head(MINE, OTHER, THIRD, MINE, OTHER, THIRD))
    assert three > two


def test_old_commits_do_not_count_for_any_share() -> None:
    stage = Stage()
    _crowd(stage)
    old = stage.pause(stage.head(MINE, *[OTHER] * 9, ago_ms=2 * int(RIVALRY_MS)))
    new = stage.pause(stage.head(MINE, *[OTHER] * 9))
    assert old > new


def test_attempts_wait_longer_and_age_buys_priority() -> None:
    stage = Stage()
    _crowd(stage)
    head = stage.head(MINE, OTHER)
    assert stage.pause(head, attempt=3) > stage.pause(head, attempt=1) > 0
    assert stage.pause(head, attempt=3, age_ms=5_000) < stage.pause(head, attempt=3) / 10


def test_waits_follow_how_long_commits_take() -> None:
    stage = Stage()
    _crowd(stage)
    head = stage.head(MINE, OTHER)
    quick = stage.pause(head)
    for _ in range(100):
        stage.turns.tried(50.0)
    assert stage.pause(head) > 10 * quick


def test_a_process_that_waits_gives_a_slow_database_time() -> None:
    turns = Stage().turns
    quick = turns.patience(slots=2)
    for _ in range(100):
        turns.tried(50.0)
    assert turns.patience(slots=2) > 10 * quick
    assert max(turns.patience(slots=2) for _ in range(100)) <= RIVALRY_MS


def test_an_answer_may_take_as_long_as_four_commits() -> None:
    turns = Stage().turns
    assert turns.answer_ms(slots=2) <= 50.0
    for _ in range(8):
        turns.tried(200.0)
    for _ in range(50):
        turns.handed_over(1_000.0)
    assert turns.answer_ms(slots=2) == 4 * 200.0


def test_looks_of_many_processes_do_not_keep_the_database_busy() -> None:
    turns = Stage().turns
    assert turns.look_ms(1, slots=32) < 1  # nothing is known yet
    turns.looked(10.0)  # the database may be busy already
    assert turns.look_ms(1, slots=32) > 300
    for _ in range(100):
        turns.looked(4.0)
    assert turns.look_ms(1, slots=32) < 1  # far away, but idle
    for _ in range(12):
        turns.looked(10.0)
    for slots in (2, 8, 32):
        least = 0.8 * slots * 2 * (10 - 4)
        assert min(turns.look_ms(0, slots), turns.look_ms(1, slots), turns.answer_ms(slots)) > least
        assert turns.patience(slots) > min(2 * least, RIVALRY_MS / 2)
    assert turns.look_ms(1, slots=1_000) <= RIVALRY_MS / 2  # the dead are not waited for
    assert len({turns.patience(slots=1_000) for _ in range(10)}) > 1  # not all give up together
    for _ in range(500):
        turns.looked(10.0)
    assert turns.look_ms(1, slots=8) < 1  # it has moved to another machine


def test_one_slow_read_is_soon_forgotten() -> None:
    turns = Stage().turns
    turns.looked(10_000.0)
    for _ in range(32):
        turns.looked(1.0)
    assert turns.look_ms(1, slots=8) < 50


def test_processes_without_slots_count_as_strangers_after_two_commits() -> None:
    stage = Stage()
    head = stage.head(MINE, THIRD, OTHER, THIRD)
    slots = tuple(Slot(pack(IdParts(stage.clock.now_ms(), node, 1)), 9) for node in (MINE, OTHER, THIRD))
    assert stage.turns.has_strangers(_with_slots(head, slots[:2]))
    assert not stage.turns.has_strangers(_with_slots(head, slots))
    assert not stage.turns.has_strangers(_with_slots(head, (slots[0], slots[2])))


def _crowd(stage: Stage) -> None:
    """Let other processes commit first twice."""
    stage.turns.lost()
    stage.turns.lost()


def _with_slots(head: CommitReader, slots: tuple[Slot, ...]) -> CommitReader:
    after = msgspec.structs.replace(head.head, slots=slots)
    return CommitReader(None, b"v", after, head.commit)  # type: ignore[arg-type]  # nothing is read
