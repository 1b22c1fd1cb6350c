"""Table updates as requests that another process can apply. Its settings must be equal, and the updates must not depend
on the process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import polaris_spark
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import TableName
from polaris_spark.catalog.tables.table_changes import CommitTable, TableCommit
from polaris_spark.commits.change import Operation

Opened = Callable[..., Catalog]

SET = {"action": "set-properties", "updates": {"owner": "me"}}
ME = Operation(b"", "me")
NAME = TableName(("sales", "eu"), "orders")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    store, sessions = f"memory:{uuid.uuid4()}", list[polaris_spark.Session]()

    def open_one(**properties: Any) -> Catalog:
        properties = {"metadata_files": "never", **properties}
        warehouse = tmp_path / properties.get("catalog", "polaris")
        session = polaris_spark.connect(store=store, warehouse=str(warehouse), **properties)
        sessions.append(session)
        return session.catalog

    yield open_one
    for session in sessions:
        session.close()


def change(
    catalog: Catalog, *updates: dict[str, Any], requirements: list[dict[str, Any]] | None = None
) -> CommitTable:
    return CommitTable(catalog.context, ME, TableCommit(NAME, requirements or [], updates))


def test_a_request_makes_an_equal_change_in_a_process_with_equal_settings(opened: Opened) -> None:
    required = [{"type": "assert-table-uuid", "uuid": str(uuid.uuid4())}]
    one, other = opened(), opened()
    request = change(one, SET, requirements=required).as_request()
    operation = Operation(bytes(16), "you", b"d")
    made = change(other, SET).from_request(request, operation)
    assert made is not None
    assert (made.name, list(made.requirements), list(made.updates)) == (NAME, required, [SET])
    assert made.operation == operation
    assert made.context is other.context


@pytest.mark.parametrize(
    "properties",
    [
        {"append_rebase": "true"},
        {"create_parent_namespaces": "false"},
        {"gc_enabled": "false"},
        {"idempotency_key_lifetime": "5m"},
        {"table_override.write.format.default": "orc"},
        {"catalog": "another"},
    ],
    ids=lambda properties: next(iter(properties)),
)
def test_a_process_with_other_settings_refuses_the_request(
    opened: Opened, properties: dict[str, str]
) -> None:
    names = {
        "append_rebase": "polaris.append-rebase",
        "gc_enabled": "gc.enabled",
        "table_override.write.format.default": "table-override.write.format.default",
    }
    one = opened()
    other = opened(**{names.get(name, name): value for name, value in properties.items()})
    assert change(other, SET).from_request(change(one, SET).as_request(), ME) is None
    assert change(one, SET).from_request(change(other, SET).as_request(), ME) is None


def test_restricted_processes_apply_only_requests_with_equal_restrictions(opened: Opened) -> None:
    free = opened()
    one, same, more = free.restricted(["/a"]), opened().restricted(["/a"]), free.restricted(["/a", "/b"])
    following = free.restricted(["/a"], follow_links=True)
    request = change(one, SET).as_request()
    assert change(same, SET).from_request(request, ME) is not None
    for other in (free, more, following):
        assert change(other, SET).from_request(request, ME) is None
        assert change(one, SET).from_request(change(other, SET).as_request(), ME) is None


@pytest.mark.parametrize(
    "update",
    [
        {"action": "set-location", "location": "/elsewhere"},
        {"action": "set-properties", "updates": {"write.data.path": "/elsewhere"}},
        {"action": "remove-properties", "removals": ["write.metadata.path"]},
        {"action": "set-properties", "updates": {"owner": 2**70}},
    ],
    ids=["location", "path", "no path", "not encodable"],
)
def test_an_update_that_depends_on_the_process_is_not_a_request(
    opened: Opened, update: dict[str, Any]
) -> None:
    assert not change(opened(), SET, update).as_request()


def test_a_change_that_writes_a_metadata_file_is_not_a_request(opened: Opened) -> None:
    assert not change(opened(metadata_files="every-commit"), SET).as_request()
    assert change(opened(), SET).as_request()


def test_deep_json_is_not_a_request(opened: Opened) -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    made = change(opened(), SET)
    made.updates = [{**SET, "junk": deep}]
    assert not made.as_request()
    while isinstance(deep, list):  # a deep list cannot be freed by recursion
        deep = deep.pop()


@pytest.mark.parametrize("garbage", [b"", b"\x93", b"\x91" * 100_000], ids=["empty", "cut off", "deep"])
def test_garbage_with_the_right_settings_is_refused(opened: Opened, garbage: bytes) -> None:
    made = change(opened(), SET)
    assert made.from_request(made.context.settings + garbage, ME) is None


def test_creations_and_appends_cannot_be_requests(opened: Opened) -> None:
    catalog = opened()
    creation = change(catalog, SET, requirements=[{"type": "assert-create"}])
    assert not creation.as_request()
    append = change(
        catalog,
        {
            "action": "add-snapshot",
            "snapshot": {
                "snapshot-id": 1,
                "sequence-number": 1,
                "timestamp-ms": 1,
                "manifest-list": "/list.avro",
                "summary": {"operation": "append"},
            },
        },
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1},
        requirements=[{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}],
    )
    assert append.append is not None
    assert not append.as_request()
    foreign = append.context.settings + msgspec.msgpack.encode(
        (*NAME, append.requirements, append.updates, ())
    )
    assert append.from_request(foreign, ME) is None


def test_the_notes_of_a_change_go_with_its_request(opened: Opened) -> None:
    one, other = opened(), opened()
    notes = (("commit.message", "Backfill March"),)
    made = CommitTable(one.context, ME._replace(notes=notes), TableCommit(NAME, [], [SET]))
    found = change(other, SET).from_request(made.as_request(), ME)
    assert found is not None
    assert found.operation.notes == notes
