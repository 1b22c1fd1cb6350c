"""Random sequences of updates give the same metadata in this package and in Iceberg's Java classes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.differential.comparing import Tally, compare, difference, sequence
from tests.differential.sides import Outcome, Theirs, class_path
from tests.sizes import TIMES

SAMPLE = 40
LONG = 500 * TIMES
WIDE = 10
LONG_WIDE = 40 * TIMES


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    """Iceberg's classes, in one process."""
    driver = Theirs(class_path(tmp_path_factory.mktemp("maven")))
    yield driver
    driver.close()


def check(tally: Tally, sequences: int) -> None:
    """Check that there are no differences, and that enough requests were compared."""
    assert not tally.differences, "\n\n".join(map(str, tally.differences))
    assert tally.sequences == sequences
    assert tally.accepted > 6 * sequences
    assert tally.requests - tally.accepted > sequences
    assert sum(tally.exempted.values()) < tally.requests / 20, tally.exempted


def test_a_sample_of_sequences_gives_the_same_metadata(theirs: Theirs) -> None:
    check(compare(theirs, (f"sample {number}" for number in range(SAMPLE))), SAMPLE)


@pytest.mark.long
def test_many_sequences_give_the_same_metadata(theirs: Theirs) -> None:
    start = os.environ.get("POLARIS_SPARK_SEED", "long")
    check(compare(theirs, (f"{start} {number}" for number in range(LONG))), LONG)


@pytest.mark.parametrize("sequences", [WIDE, pytest.param(LONG_WIDE, marks=pytest.mark.long)])
def test_tables_with_hundreds_of_tags_and_properties_have_the_same_metadata(
    theirs: Theirs, sequences: int
) -> None:
    start = os.environ.get("POLARIS_SPARK_SEED", "wide")
    seeds = [f"{start} {number}" for number in range(sequences)]
    check(compare(theirs, iter(seeds), wide=True), sequences)
    made = [outcome.metadata or {} for seed in seeds[:WIDE] for outcome in sequence(seed, wide=True).outcomes]
    for field in ("refs", "properties"):
        assert max(len(metadata.get(field, {})) for metadata in made) > 500


def test_a_seed_gives_the_same_sequence_again() -> None:
    one, other = sequence("again"), sequence("again")
    assert one == other
    assert len(one.requests) > 1


@pytest.mark.parametrize(
    ("ours", "theirs", "problem"),
    [
        (
            Outcome({"a": [1, {"b": 2}]}, "", ""),
            Outcome({"a": [1, {"b": 3}]}, "", ""),
            ".a[1].b: 2 against 3",
        ),
        (Outcome({"a": 1}, "", ""), Outcome({"a": True}, "", ""), ".a: 1 against true"),
        (Outcome({"a": 1}, "", ""), Outcome({}, "", ""), ".a only ours"),
        (
            Outcome({}, "", ""),
            Outcome(None, "CommitFailedException", ""),
            "error '' against 'CommitFailedException'",
        ),
        (Outcome({"a": None}, "", ""), Outcome({}, "", ""), ""),
    ],
)
def test_a_difference_is_found(ours: Outcome, theirs: Outcome, problem: str) -> None:
    assert difference(ours, theirs) == problem
