"""The condition of a swap compares only the bytes of the newest cell of a version."""

from __future__ import annotations

import pytest
from google.cloud.bigtable_admin_v2 import BigtableTableAdminClient
from google.cloud.bigtable_admin_v2.types import ColumnFamily, GcRule, ModifyColumnFamiliesRequest
from google.cloud.bigtable_v2.services.bigtable import BigtableClient
from google.cloud.bigtable_v2.types import Mutation

from polaris_spark.backends.base import Backend, Conflict, ReferenceRow, Swapped
from polaris_spark.testing.stores import row

_KEY = b"realm\x00name"
_VERSIONS = [
    b"\x00", b"\n", b".", b".*", b"\\C*", b"a|b", b"[a-z]", b"(?s).", b"^$", b"\\", b"\\Qa\\E", b"a\nb",
    b"\xc3\xa9", b"\xff\x00\xfe", bytes(range(64)), bytes(range(192, 256)), b"$1{2}+?",
]  # fmt: skip  # a list to skim


def keep_all_cells(admin: BigtableTableAdminClient, table: str) -> None:
    """Configure the table to keep old cells."""
    family = ColumnFamily(gc_rule=GcRule(max_num_versions=1_000))
    change = ModifyColumnFamiliesRequest.Modification(id="f", update=family)
    admin.modify_column_families(name=table, modifications=[change])


def plant(client: BigtableClient, table: str, micros: int, new: ReferenceRow) -> None:
    """Write a reference with another timestamp."""
    cells = [
        Mutation.SetCell(family_name="f", column_qualifier=column, timestamp_micros=micros, value=value)
        for column, value in ((b"version", new.version), (b"value", new.value))
    ]
    client.mutate_row(table_name=table, row_key=_KEY, mutations=[Mutation(set_cell=cell) for cell in cells])


def stamps(client: BigtableClient, table: str) -> list[int]:
    """Timestamps of all cells of the reference."""
    answers = client.read_rows({"table_name": table, "rows": {"row_keys": [_KEY]}})
    return [chunk.timestamp_micros for answer in answers for chunk in answer.chunks]


def test_an_older_cell_satisfies_no_condition(
    backend: Backend, client: BigtableClient, admin: BigtableTableAdminClient, references: str
) -> None:
    keep_all_cells(admin, references)
    older, current = row(b"older"), row(b"current")
    backend.insert_reference("realm", "name", current)
    plant(client, references, 0, older)
    assert stamps(client, references) == [1_000, 0, 1_000, 0]
    assert backend.swap_reference("realm", "name", older.version, row()) == Conflict()
    assert backend.delete_reference("realm", "name", older.version) == Conflict()
    assert backend.read_reference("realm", "name") == current
    assert stamps(client, references) == [1_000, 0, 1_000, 0]
    assert backend.swap_reference("realm", "name", current.version, new := row(b"new")) == Swapped()
    assert backend.read_reference("realm", "name") == new


def test_readers_and_conditions_see_the_newest_cell(
    backend: Backend, client: BigtableClient, admin: BigtableTableAdminClient, references: str
) -> None:
    keep_all_cells(admin, references)
    backend.insert_reference("realm", "name", before := row(b"before"))
    plant(client, references, 2_000, latest := row(b"latest"))
    assert backend.read_reference("realm", "name") == latest
    assert backend.swap_reference("realm", "name", before.version, row()) == Conflict()
    assert backend.delete_reference("realm", "name", latest.version) == Swapped()
    assert stamps(client, references) == []


def test_swaps_leave_no_older_cells_behind(
    backend: Backend, client: BigtableClient, admin: BigtableTableAdminClient, references: str
) -> None:
    keep_all_cells(admin, references)
    backend.insert_reference("realm", "name", current := row())
    for _ in range(5):
        new = row()
        assert backend.swap_reference("realm", "name", current.version, new) == Swapped()
        current = new
    assert stamps(client, references) == [1_000, 1_000]


@pytest.mark.parametrize("version", _VERSIONS)
def test_a_version_is_compared_by_its_bytes(backend: Backend, version: bytes) -> None:
    backend.insert_reference("realm", "name", ReferenceRow(version, b"x"))
    for other in {*_VERSIONS, version + b"\x00", b"\x00" + version, version[:-1], version * 2} - {version}:
        assert backend.swap_reference("realm", "name", other, row()) == Conflict(), other
        assert backend.delete_reference("realm", "name", other) == Conflict(), other
    assert backend.read_reference("realm", "name") == ReferenceRow(version, b"x")
    assert backend.swap_reference("realm", "name", version, new := row()) == Swapped()
    assert backend.delete_reference("realm", "name", new.version) == Swapped()


def test_a_row_of_another_program_is_not_a_reference_and_is_not_changed(
    backend: Backend, client: BigtableClient, references: str
) -> None:
    cell = Mutation.SetCell(family_name="f", column_qualifier=b"note", timestamp_micros=0, value=b"x")
    client.mutate_row(table_name=references, row_key=_KEY, mutations=[Mutation(set_cell=cell)])
    assert backend.read_reference("realm", "name") is None
    assert [b for s in backend.splits("references", None, 1) for b in backend.scan(s)] == []
    assert backend.insert_reference("realm", "name", new := row()) == Swapped()
    assert backend.insert_reference("realm", "name", row()) == Conflict()
    assert backend.read_reference("realm", "name") == new
