"""The checker of histories of one reference: which histories it accepts, and which errors it finds."""

from __future__ import annotations

from typing import Any

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.errors import TryAgainError
from polaris_spark.testing import histories
from polaris_spark.testing.histories import Kind, Operation, linearizable, record
from polaris_spark.testing.processes import in_threads


def told(kind: Kind, start: int, end: int | None, **more: Any) -> Operation:
    return Operation(kind, start, end, **more)


def test_sequential_operations_are_accepted() -> None:
    assert linearizable(
        [
            told("read", 0, 1, found=None),
            told("insert", 2, 3, new=b"a", took_place=True),
            told("insert", 4, 5, new=b"b", took_place=False),
            told("swap", 6, 7, expected=b"a", new=b"c", took_place=True),
            told("swap", 8, 9, expected=b"a", new=b"d", took_place=False),
            told("read", 10, 11, found=b"c"),
            told("delete", 12, 13, expected=b"c", took_place=True),
            told("read", 14, 15, found=None),
        ]
    )


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            [
                told("swap", 0, 10, expected=b"0", new=b"a", took_place=True),
                told("swap", 0, 10, expected=b"0", new=b"b", took_place=True),
            ],
            id="two swaps of one version",
        ),
        pytest.param(
            [
                told("swap", 0, 1, expected=b"0", new=b"a", took_place=True),
                told("read", 2, 3, found=b"0"),
            ],
            id="a stale read",
        ),
        pytest.param(
            [
                told("swap", 0, 1, expected=b"0", new=b"a", took_place=False),
                told("read", 2, 3, found=b"a"),
            ],
            id="a conflict that took place",
        ),
        pytest.param(
            [
                told("swap", 0, 9, expected=b"0", new=b"a", took_place=True),
                told("read", 2, 3, found=b"a"),
                told("read", 4, 5, found=b"0"),
            ],
            id="a read that goes back",
        ),
        pytest.param(
            [told("delete", 0, 1, expected=b"0", took_place=True), told("read", 2, 3, found=b"0")],
            id="a delete that was not done",
        ),
        pytest.param([told("insert", 0, 1, new=b"a", took_place=True)], id="an insert over a row"),
        pytest.param(
            [
                told("swap", 0, 1, expected=b"0", new=b"a", took_place=True),
                told("swap", 2, 3, expected=b"x", new=b"b", took_place=False, found=b"0"),
            ],
            id="a conflict with a row that was gone",
        ),
        pytest.param(
            [
                told("swap", 0, None, expected=b"0", new=b"a"),
                told("read", 1, 2, found=b"a"),
                told("read", 3, 4, found=b"0"),
            ],
            id="a swap of unknown outcome that was taken back",
        ),
    ],
)
def test_results_that_a_single_register_cannot_give_are_found(history: list[Operation]) -> None:
    assert not linearizable(history, first=b"0")


def test_operations_at_the_same_time_may_have_come_in_any_order() -> None:
    swaps = [
        told("swap", 0, 10, expected=b"a", new=b"b", took_place=True),
        told("swap", 0, 10, expected=b"0", new=b"a", took_place=True),
    ]
    assert linearizable([*swaps, told("read", 5, 20, found=b"0")], first=b"0")
    assert linearizable([*swaps, told("read", 11, 20, found=b"b")], first=b"0")
    assert not linearizable([*swaps, told("read", 11, 20, found=b"a")], first=b"0")


@pytest.mark.parametrize("seen", [b"0", b"a"])
def test_a_swap_of_unknown_outcome_may_have_taken_effect_or_not(seen: bytes) -> None:
    swap = told("swap", 0, None, expected=b"0", new=b"a")
    assert linearizable([swap, told("read", 5, 6, found=seen)], first=b"0")
    assert linearizable([swap, told("read", 1, 2, found=b"0"), told("read", 5, 6, found=seen)], first=b"0")


def test_a_recorded_history_is_accepted_until_one_answer_of_it_is_changed() -> None:
    backend = open_backend("memory:recorded")
    parts = in_threads(4, lambda n: record(backend, "realm", "name", f"{n}", 150))
    history = [operation for part in parts for operation in part]
    assert {operation.kind for operation in history} == {"read", "insert", "swap", "delete"}
    assert linearizable(history)
    conflicts = [i for i, each in enumerate(history) if each.took_place is False and each.found]
    assert conflicts
    for i in conflicts[::40]:
        assert not linearizable(
            [*history[:i], history[i]._replace(found=b"none of these"), *history[i + 1 :]]
        )
    swaps = [i for i, each in enumerate(history) if each.kind == "swap" and each.took_place]
    for i in swaps[::40]:
        changed = [*history[:i], history[i]._replace(took_place=False), *history[i + 1 :]]
        assert not linearizable(changed)
    backend.close()


def test_a_store_that_refuses_everything_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "PATIENCE_S", 0.2)
    backend = open_backend("memory:busy")

    def refuse(*_: object) -> None:
        raise TryAgainError("busy")

    for name in ("read_reference", "insert_reference"):
        monkeypatch.setattr(backend, name, refuse)
    with pytest.raises(TryAgainError, match="busy"):
        record(backend, "realm", "name", "seed", 5)
