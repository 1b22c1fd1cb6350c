"""References as typed values, and swaps of unknown outcome."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from polaris_spark.backends.base import Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.errors import CorruptionError, OutcomeUnknownError
from polaris_spark.store.references import ReferenceStore, new_version

_numbers = count()


class Value(msgspec.Struct, frozen=True):
    number: int
    text: str = ""


class Doubtful(MemoryBackend):
    """A memory store whose conditional operations fail as planned, before or after they take effect."""

    transactional = False

    def __init__(self) -> None:
        super().__init__(f"references-{next(_numbers)}")
        self.plan: list[str] = []

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        self._doubt("before")
        outcome = super().insert_reference(realm, name, new)
        self._doubt("after")
        return outcome

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        self._doubt("before")
        outcome = super().write_and_swap(realm, (), name, expected_version, new)
        self._doubt("after")
        return outcome

    def _doubt(self, when: str) -> None:
        if self.plan and self.plan[0] == when:
            self.plan.pop(0)
            raise OutcomeUnknownError("the connection broke")


@pytest.fixture
def backend() -> Doubtful:
    return Doubtful()


@pytest.fixture
def references(backend: Doubtful) -> ReferenceStore:
    return ReferenceStore(backend, "realm")


def test_versions_differ() -> None:
    versions = {new_version() for _ in range(10_000)}
    assert len(versions) == 10_000
    assert {len(version) for version in versions} == {16}


def test_values_come_back_with_their_version(references: ReferenceStore) -> None:
    row = references.row(Value(1, "x"))
    assert references.read("name", Value) is None
    assert references.insert("name", row) == Swapped()
    assert references.read("name", Value) == (row.version, Value(1, "x"))


def test_a_swap_and_a_delete_need_the_version_read(references: ReferenceStore) -> None:
    references.insert("name", references.row(Value(1)))
    found = references.read("name", Value)
    assert found is not None
    new = references.row(Value(2))
    assert references.swap("name", found.version, new) == Swapped()
    outcome = references.swap("name", found.version, references.row(Value(3)))
    assert isinstance(outcome, Conflict)
    assert outcome.current is not None
    assert references.decode("name", outcome.current, Value).value == Value(2)
    assert isinstance(references.delete("name", found.version), Conflict)
    assert references.delete("name", new.version) == Swapped()


def test_a_value_of_another_shape_is_corrupt_and_named(references: ReferenceStore) -> None:
    references.insert("name", ReferenceRow(b"1", b"\xc1"))
    with pytest.raises(CorruptionError, match="the value of reference realm/name cannot be decoded as Value"):
        references.read("name", Value)


def test_rows_and_swap_go_together_without_transactions_too(references: ReferenceStore) -> None:
    first = references.row(Value(1))
    references.insert("name", first)
    swapped = references.write_and_swap(
        [ObjectRow(1, 0, b"x")], "name", first.version, references.row(Value(2))
    )
    assert swapped == Swapped()
    assert references.backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}


@pytest.mark.parametrize(
    "plan", [[], ["before"], ["after"], ["before", "after"], ["after", "after", "before"]]
)
def test_a_put_in_doubt_is_repeated_until_it_is_certain(
    references: ReferenceStore, backend: Doubtful, plan: list[str]
) -> None:
    backend.plan = list(plan)
    first = references.row(Value(1))
    assert references.put("name", None, first)
    backend.plan = list(plan)
    second = references.row(Value(2))
    assert references.put("name", first.version, second)
    assert references.read("name", Value) == (second.version, Value(2))


def test_a_put_that_lost_its_swap_returns_false(references: ReferenceStore, backend: Doubtful) -> None:
    winner = references.row(Value(1))
    assert references.put("name", None, winner)
    backend.plan = ["before"]
    assert not references.put("name", None, references.row(Value(2)))
    backend.plan = ["after"]
    assert not references.put("name", b"stale", references.row(Value(3)))
    assert references.read("name", Value) == (winner.version, Value(1))


def test_a_put_whose_outcome_stays_unknown_raises_an_error(
    references: ReferenceStore, backend: Doubtful
) -> None:
    backend.plan = ["before"] * 10
    with pytest.raises(OutcomeUnknownError):
        references.put("name", None, references.row(Value(1)))
