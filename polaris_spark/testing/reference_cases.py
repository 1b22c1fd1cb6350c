"""Test cases of the storage contract for references (rows that change by compare-and-swap) and for names."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from polaris_spark.backends.base import (
    MAX_NAME_BYTES,
    MAX_ROW_BYTES,
    Backend,
    Conflict,
    ObjectKey,
    ObjectRow,
    ReferenceRow,
    Swapped,
    Table,
)
from polaris_spark.clock import FAR_MS, SystemClock
from polaris_spark.errors import InputError, ObjectTooLargeError
from polaris_spark.testing.processes import rows
from polaris_spark.testing.stores import HOSTILE_NAMES, StoreCases, row


class ReferenceCases(StoreCases):
    """Test cases for the rows of the table `references`, and for names of realms and references."""

    def test_the_database_s_own_clock_says_milliseconds_since_1970(self, backend: Backend) -> None:
        before = SystemClock().now_ms()
        said = backend.now_ms()
        after = SystemClock().now_ms()
        assert said is None or before - FAR_MS <= said <= after + FAR_MS

    def test_a_reference_never_inserted_is_absent(self, backend: Backend) -> None:
        assert backend.read_reference("realm", "name") is None

    def test_an_empty_reference_is_not_an_absent_one(self, backend: Backend) -> None:
        new = row(b"")
        assert backend.insert_reference("realm", "name", new) == Swapped()
        assert backend.read_reference("realm", "name") == new
        assert isinstance(backend.insert_reference("realm", "name", row()), Conflict)

    def test_inserting_over_a_row_is_a_conflict_and_changes_nothing(self, backend: Backend) -> None:
        first = row(b"first")
        backend.insert_reference("realm", "name", first)
        outcome = backend.insert_reference("realm", "name", row(b"second"))
        assert isinstance(outcome, Conflict)
        assert outcome.current in (None, first)
        assert backend.read_reference("realm", "name") == first

    def test_a_swap_needs_the_expected_version(self, backend: Backend) -> None:
        first, second = row(b"first"), row(b"second")
        backend.insert_reference("realm", "name", first)
        assert backend.swap_reference("realm", "name", first.version, second) == Swapped()
        outcome = backend.swap_reference("realm", "name", first.version, row(b"third"))
        assert isinstance(outcome, Conflict)
        assert outcome.current in (None, second)
        assert backend.read_reference("realm", "name") == second

    def test_a_swap_of_an_absent_row_is_a_conflict_and_creates_nothing(self, backend: Backend) -> None:
        for expected in (os.urandom(16), b"\x00", b"null"):
            assert backend.swap_reference("realm", "name", expected, row()) == Conflict(None)
        assert backend.read_reference("realm", "name") is None

    def test_an_empty_expected_version_is_no_version(self, backend: Backend) -> None:
        current = row()
        backend.insert_reference("realm", "there", current)
        for name, found in (("there", current), ("absent", None)):
            with suppress(InputError):
                assert isinstance(backend.swap_reference("realm", name, b"", row()), Conflict)
            with suppress(InputError):
                assert isinstance(backend.delete_reference("realm", name, b""), Conflict)
            assert backend.read_reference("realm", name) == found

    def test_a_reference_may_be_born_and_die_again_and_again(self, backend: Backend) -> None:
        gone: list[ReferenceRow] = []
        for number in range(8):
            current = row(b"%d" % number)
            assert backend.insert_reference("realm", "name", current) == Swapped()
            for old in gone:
                assert isinstance(backend.swap_reference("realm", "name", old.version, row()), Conflict)
                assert isinstance(backend.delete_reference("realm", "name", old.version), Conflict)
            assert backend.read_reference("realm", "name") == current
            assert backend.delete_reference("realm", "name", current.version) == Swapped()
            assert backend.read_reference("realm", "name") is None
            assert isinstance(backend.swap_reference("realm", "name", current.version, row()), Conflict)
            gone.append(current)
        assert rows(backend, backend.splits("references", ["realm"], 2)) == []

    def test_a_swap_to_another_size_takes_place(self, backend: Backend) -> None:
        backend.insert_reference("realm", "name", current := row(b""))
        for size in (MAX_ROW_BYTES, 0, 10_000, 1, 100_000, 0):
            new = row(os.urandom(size))
            assert backend.swap_reference("realm", "name", current.version, new) == Swapped()
            assert backend.read_reference("realm", "name") == new
            current = new

    def test_a_swap_to_the_same_value_takes_place(self, backend: Backend) -> None:
        first, second = row(b"same"), row(b"same")
        backend.insert_reference("realm", "name", first)
        assert backend.swap_reference("realm", "name", first.version, second) == Swapped()
        assert backend.read_reference("realm", "name") == second

    def test_repeating_a_swap_that_took_place_finds_its_own_version(self, backend: Backend) -> None:
        first, second = row(b"first"), row(b"second")
        backend.insert_reference("realm", "name", first)
        backend.swap_reference("realm", "name", first.version, second)
        outcome = backend.swap_reference("realm", "name", first.version, second)
        if isinstance(outcome, Conflict):
            assert outcome.current in (None, second)
        assert backend.read_reference("realm", "name") == second

    def test_a_reference_is_deleted_only_at_the_expected_version(self, backend: Backend) -> None:
        first = row()
        backend.insert_reference("realm", "name", first)
        assert isinstance(backend.delete_reference("realm", "name", os.urandom(16)), Conflict)
        assert backend.read_reference("realm", "name") == first
        assert backend.delete_reference("realm", "name", first.version) == Swapped()
        assert backend.read_reference("realm", "name") is None
        assert backend.delete_reference("realm", "name", first.version) == Conflict(None)
        assert backend.insert_reference("realm", "name", row()) == Swapped()

    @pytest.mark.parametrize("version", [b"\x00", b"\x00" * 16, b"\xff" * 16, b"'", b"v" * 64])
    def test_any_bytes_are_a_version(self, backend: Backend, version: bytes) -> None:
        backend.insert_reference("realm", "name", ReferenceRow(version, b"x"))
        assert backend.read_reference("realm", "name") == ReferenceRow(version, b"x")
        assert isinstance(backend.swap_reference("realm", "name", version + b"\x00", row()), Conflict)
        assert isinstance(backend.delete_reference("realm", "name", version + b"\x00"), Conflict)
        assert backend.swap_reference("realm", "name", version, row()) == Swapped()

    def test_references_of_the_size_limit_work_and_larger_ones_are_refused(self, backend: Backend) -> None:
        largest = row(os.urandom(MAX_ROW_BYTES))
        backend.insert_reference("realm", "name", largest)
        assert backend.read_reference("realm", "name") == largest
        too_large = row(largest.value + b"x")
        with pytest.raises(ObjectTooLargeError):
            backend.swap_reference("realm", "name", largest.version, too_large)
        with pytest.raises(ObjectTooLargeError):
            backend.insert_reference("realm", "other", too_large)
        assert backend.read_reference("realm", "name") == largest
        assert backend.read_reference("realm", "other") is None

    def test_hostile_reference_names_stay_apart(self, backend: Backend) -> None:
        written = {name: row(name.encode()) for name in HOSTILE_NAMES}
        for name, new in written.items():
            assert backend.insert_reference("realm", name, new) == Swapped(), repr(name)
        assert {name: backend.read_reference("realm", name) for name in HOSTILE_NAMES} == written
        found = rows(backend, backend.splits("references", ["realm"], 3))
        assert sorted(found) == sorted(("realm", name, *new) for name, new in written.items())

    def test_hostile_realm_names_stay_apart(self, backend: Backend) -> None:
        for number, realm in enumerate(HOSTILE_NAMES):
            assert backend.insert_reference(realm, "name", row(b"%d" % number)) == Swapped(), repr(realm)
            backend.write_objects(realm, [ObjectRow(1, 0, b"%d" % number)])
        for number, realm in enumerate(HOSTILE_NAMES):
            found = backend.read_reference(realm, "name")
            assert found is not None
            assert found.value == b"%d" % number
            assert backend.read_objects(realm, [ObjectKey(1)]) == {ObjectKey(1): b"%d" % number}
        found_realms = [found[0] for found in rows(backend, backend.splits("objects", None, 4))]
        assert sorted(found_realms) == sorted(HOSTILE_NAMES)  # type: ignore[type-var]  # realms are strings

    @pytest.mark.parametrize("character", ["n", "/", "%", "\x00", "ü", "\uffff", "🦆"])
    def test_the_longest_realms_and_names_work_together(self, backend: Backend, character: str) -> None:
        longest = character * (MAX_NAME_BYTES // len(character.encode()))
        shorter = longest[:-1]
        for realm in (longest, shorter):
            for name in (longest, shorter):
                new = row(f"{len(realm)} {len(name)}".encode())
                assert backend.insert_reference(realm, name, new) == Swapped()
                assert backend.read_reference(realm, name) == new
            backend.write_objects(realm, [ObjectRow(1, 0, b"%d" % len(realm))])
        assert backend.read_objects(longest, [ObjectKey(1)]) == {ObjectKey(1): b"%d" % len(longest)}
        assert len(rows(backend, backend.splits("references", [longest], 2))) == 2
        assert len(rows(backend, backend.splits("objects", None, 2))) == 2

    @pytest.mark.parametrize("name", ["", "\ud800", "n" * (MAX_NAME_BYTES + 1), "ü" * MAX_NAME_BYTES])
    def test_names_that_no_store_can_hold_are_refused(self, backend: Backend, name: str) -> None:
        tables: tuple[Table, ...] = ("objects", "references")
        asked: list[Callable[[], object]] = [
            lambda: backend.read_objects(name, [ObjectKey(1)]),
            lambda: backend.write_objects(name, [ObjectRow(1, 0, b"x")]),
            lambda: backend.delete_objects(name, [ObjectKey(1)]),
            *(partial(backend.splits, table, ["realm", name], 2) for table in tables),
        ]
        if type(backend).drop_realm is not Backend.drop_realm:
            asked.append(partial(backend.drop_realm, name))
        for realm, reference in (("realm", name), (name, "name")):
            asked += [
                partial(backend.read_reference, realm, reference),
                partial(backend.insert_reference, realm, reference, row()),
                partial(backend.swap_reference, realm, reference, b"version", row()),
                partial(backend.delete_reference, realm, reference, b"version"),
            ]
            if backend.transactional:
                asked.append(partial(backend.write_and_swap, realm, [], reference, b"version", row()))
        for ask in asked:
            with pytest.raises(InputError):
                ask()

    def test_realms_do_not_see_each_other(self, backend: Backend) -> None:
        backend.write_objects("a", [ObjectRow(1, 0, b"a")])
        backend.insert_reference("a", "name", row(b"a"))
        assert backend.read_objects("b", [ObjectKey(1)]) == {}
        assert backend.read_reference("b", "name") is None
        backend.delete_objects("b", [ObjectKey(1)])
        assert backend.read_objects("a", [ObjectKey(1)]) == {ObjectKey(1): b"a"}
