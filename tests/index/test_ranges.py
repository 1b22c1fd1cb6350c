"""Division of weights into ranges of about equal total weight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polaris_spark.index.ranges import grouped


@pytest.mark.parametrize(
    ("weights", "n", "expected"),
    [
        ([], 3, []),
        ([0, 0], 3, [range(2)]),
        ([10, 0], 1, [range(2)]),
        ([1, 1, 0], 2, [range(1), range(1, 3)]),
        ([1, 1, 1], 5, [range(1), range(1, 2), range(2, 3)]),
    ],
)
def test_weights_of_zero_make_no_ranges_of_their_own(
    weights: list[int], n: int, expected: list[range]
) -> None:
    assert grouped(weights, n) == expected


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 6))
def test_ranges_are_consecutive_not_empty_and_at_most_as_many_as_asked(weights: list[int], n: int) -> None:
    found = grouped(weights, n)
    assert [position for one in found for position in one] == list(range(len(weights)))
    assert all(found)
    assert len(found) <= n
