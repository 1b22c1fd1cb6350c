"""The commit protocol on a database that does not report whether a swap took effect: once, or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectRow, ReferenceRow, Swapped
from polaris_spark.clock import ManualClock
from polaris_spark.commits.rows import Head
from polaris_spark.errors import (
    OutcomeUnknownError,
    StorageFullError,
    TryAgainError,
)

from .support import Add, committer, number


class Doubtful:
    """A backend whose swaps fail with an unknown outcome, as planned: 'before' or 'after' they take effect."""

    def __init__(self, inner: Backend, *, transactional: bool) -> None:
        self._inner = inner
        self.transactional = transactional
        self.plan: list[str] = []
        self.between: Callable[[], None] | None = None
        self.rows_written: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def _doubt(self, swap: Callable[[], Swapped | Conflict]) -> Swapped | Conflict:
        step = self.plan.pop(0) if self.plan else ""
        if step == "before":
            raise OutcomeUnknownError("lost on the way there")
        if step == "busy":
            raise TryAgainError("the database is busy")
        if step == "full":
            raise StorageFullError("the disk is full")
        if step == "broken":
            raise RuntimeError("the driver has a bug")
        result = swap()
        if step == "after":
            if self.between is not None:
                self.between()
            raise OutcomeUnknownError("lost on the way back")
        return result

    def write_and_swap(
        self, realm: str, rows: Sequence[ObjectRow], name: str, expected: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        return self._doubt(lambda: self._inner.write_and_swap(realm, rows, name, expected, new))

    def swap_reference(self, realm: str, name: str, expected: bytes, new: ReferenceRow) -> Swapped | Conflict:
        return self._doubt(lambda: self._inner.swap_reference(realm, name, expected, new))

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        self.rows_written += [row.id for row in rows]
        self._inner.write_objects(realm, rows)


@pytest.fixture(params=[True, False], ids=["with transactions", "rows first, then swap"])
def doubtful(request: pytest.FixtureRequest) -> Doubtful:
    return Doubtful(open_backend(f"memory:{uuid.uuid4()}"), transactional=request.param)


def test_a_swap_that_was_lost_on_the_way_there_is_repeated(doubtful: Doubtful) -> None:
    c = committer(doubtful)  # type: ignore[arg-type]  # a wrapper of a backend
    doubtful.plan = ["before", "before"]
    assert c.commit(Add("a")) == 1
    assert number(c, "a") == 1


def test_a_swap_whose_answer_was_lost_is_done_once(doubtful: Doubtful) -> None:
    c = committer(doubtful)  # type: ignore[arg-type]  # a wrapper of a backend
    doubtful.plan = ["after", "after"]
    assert c.commit(Add("a")) == 1
    assert number(c, "a") == 1
    assert c.read().head.number == 1


def test_a_lost_answer_is_recognised_although_others_committed_since(doubtful: Doubtful) -> None:
    c = committer(doubtful)  # type: ignore[arg-type]  # a wrapper of a backend
    other = committer(doubtful._inner)
    for _ in range(50):
        other.commit(Add("b"))
    c.read()
    doubtful.plan = ["after"]
    doubtful.between = lambda: [other.commit(Add("b")) for _ in range(100)] and None
    assert c.commit(Add("a")) == 1
    assert number(c, "a") == 1
    assert number(c, "b") == 150


def test_after_a_doubtful_swap_that_was_lost_the_next_one_is_made_on_the_newest_head(
    doubtful: Doubtful,
) -> None:
    c = committer(doubtful)  # type: ignore[arg-type]  # a wrapper of a backend
    other = committer(doubtful._inner)
    c.read()
    attempt, read = doubtful._doubt, doubtful._inner.read_reference
    swaps, failures = 0, 1

    def swap(now: Callable[[], Swapped | Conflict]) -> Swapped | Conflict:
        nonlocal swaps
        swaps += 1
        if swaps == 1:
            other.commit(Add("b"))
        return attempt(now)

    def read_reference(realm: str, name: str) -> ReferenceRow | None:
        nonlocal failures
        if swaps == 2 and failures:  # it is not known yet whether the first swap took place
            failures -= 1
            other.commit(Add("b"))
            raise TryAgainError("busy")
        return read(realm, name)

    doubtful._doubt, doubtful.read_reference = swap, read_reference  # type: ignore[method-assign, attr-defined]
    doubtful.plan = ["before"]
    assert c.commit(Add("a")) == 1
    assert (swaps, failures) == (3, 0)
    assert number(c, "b") == 2


def test_an_outcome_that_stays_unknown_is_reported_as_unknown(doubtful: Doubtful) -> None:
    clock = ManualClock()
    c = committer(doubtful, clock=clock)  # type: ignore[arg-type]  # a wrapper of a backend
    doubtful.plan = ["before"] * 1_000_000
    with pytest.raises(OutcomeUnknownError):
        c.commit(Add("a"))


def test_a_busy_database_is_asked_again(doubtful: Doubtful) -> None:
    c = committer(doubtful)  # type: ignore[arg-type]  # a wrapper of a backend
    doubtful.plan = ["busy"] * 5
    assert c.commit(Add("a")) == 1
    assert number(c, "a") == 1


def test_a_busy_database_raises_an_error_and_changes_nothing(doubtful: Doubtful) -> None:
    clock = ManualClock()
    c = committer(doubtful, clock=clock)  # type: ignore[arg-type]  # a wrapper of a backend
    doubtful.plan = ["busy"] * 1_000_000
    with pytest.raises(TryAgainError, match="the database is busy"):
        c.commit(Add("a"), deadline_ms=5_000)
    assert 5_000 <= clock.monotonic_ms() < 6_000
    doubtful.plan = []
    assert number(c, "a") == 0


def test_after_a_swap_of_unknown_outcome_a_busy_database_is_asked_until_it_answers(
    doubtful: Doubtful,
) -> None:
    c = committer(doubtful)  # type: ignore[arg-type]  # a wrapper of a backend
    doubtful.plan = ["after", "busy", "busy"]
    assert c.commit(Add("a")) == 1
    assert number(c, "a") == 1


def test_after_a_swap_of_unknown_outcome_an_error_is_not_reported_as_nothing_changed(
    doubtful: Doubtful,
) -> None:
    c = committer(doubtful)  # type: ignore[arg-type]  # a wrapper of a backend
    doubtful.plan = ["after", "broken"]
    with pytest.raises(OutcomeUnknownError):
        c.commit(Add("a"))
    assert number(c, "a") == 1


def test_rows_are_acknowledged_before_the_swap() -> None:
    doubtful = Doubtful(open_backend(f"memory:{uuid.uuid4()}"), transactional=False)
    c = committer(doubtful)  # type: ignore[arg-type]  # a wrapper of a backend
    c.commit(Add("a"))
    head = c.read().head
    assert head.commit in doubtful.rows_written


def test_rows_in_doubt_change_nothing() -> None:
    doubtful = Doubtful(open_backend(f"memory:{uuid.uuid4()}"), transactional=False)
    c = committer(doubtful, deadline_ms=1_000.0)  # type: ignore[arg-type]  # a backend in all but name
    c.commit(Add("a"))

    def lost(*_: object) -> None:
        raise OutcomeUnknownError("lost on the way back")

    doubtful.write_objects = lost  # type: ignore[method-assign]  # no answer comes from here on
    with pytest.raises(TryAgainError):
        c.commit(Add("a"))
    assert number(c, "a") == 1


def test_an_amended_head_keeps_its_commit_and_makes_begun_commits_begin_again(doubtful: Doubtful) -> None:
    c = committer(doubtful)  # type: ignore[arg-type]  # a wrapper of a backend
    other = committer(doubtful._inner)
    other.commit(Add("a"))
    c.read()
    doubtful.plan = ["after", "before"]
    fence = c.read().head.commit + 1
    amended = other.amend(lambda head: msgspec.structs.replace(head, fence=max(head.fence, fence)))
    change = Add("a")
    assert c.commit(change) == 2
    assert c.read().head.fence == amended.head.fence == fence
    assert c.read().head.number == 2


@pytest.mark.parametrize("trouble", ["busy", "full"])
def test_an_amendment_in_doubt_is_not_reported_as_failed_after_a_later_error(
    doubtful: Doubtful, trouble: str
) -> None:
    c = committer(doubtful, deadline_ms=1_000.0)  # type: ignore[arg-type]  # a wrapper of a backend
    c.commit(Add("a"))

    def fenced(head: Head) -> Head:
        return msgspec.structs.replace(head, fence=max(head.fence, 7))

    doubtful.plan = ["before", trouble]
    assert c.amend(fenced).head.fence == 7
    doubtful.plan = ["before", *[trouble] * 1_000]
    with pytest.raises(OutcomeUnknownError):
        c.amend(lambda head: msgspec.structs.replace(head, fence=max(head.fence, 8)))
    doubtful.plan = [trouble] * 1_000
    with pytest.raises(TryAgainError):
        c.amend(lambda head: msgspec.structs.replace(head, fence=max(head.fence, 8)))
    assert (len(doubtful.plan) == 999) == (trouble == "full")  # at once


def test_an_amendment_in_doubt_on_the_row_of_another_process_is_not_reported_as_failed(
    doubtful: Doubtful,
) -> None:
    c = committer(doubtful, deadline_ms=1_000.0)  # type: ignore[arg-type]  # a wrapper of a backend
    other = committer(doubtful._inner)
    other.commit(Add("a"))
    others = [Add("a")]

    def fenced(head: Head) -> Head:
        if others:
            other.commit(others.pop())
            doubtful.plan = ["", "before", *["busy"] * 1_000]  # the first swap has a conflict
        return msgspec.structs.replace(head, fence=7)

    with pytest.raises(OutcomeUnknownError):
        c.amend(fenced)
