"""Every job treats a materialized view and its storage table as one: their files, rows and documents."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable, Table

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.files.files import local_path
from polaris_spark.commits.change import Operation
from polaris_spark.errors import BadRequestError
from polaris_spark.jobs.registry import call
from polaris_spark.rest.opening import connect
from polaris_spark.store.cache import process_cache
from tests.cli.catalogs import run
from tests.maintenance.lakes import Lake, paths
from tests.maintenance.realm_files import exported, imported
from tests.rest.materialized import create_materialized_view, refresh_rows

DOCUMENT = "materialized_view_metadata"
AT_ONCE = {"idempotency_key_lifetime": "0s", "history_retention": "0s", "grace": "0s"}


@pytest.fixture(params=["every-commit", "never"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """A catalog with the table `db.t` and the materialized view `db.v`, which was refreshed twice; the rows of the view
    are 0 and 1."""
    lake = Lake(
        f"sqlite://{tmp_path}/lake.db", tmp_path / "warehouse", metadata_files=request.param, grace="0s"
    )
    lake.table()
    create_materialized_view(lake.session.catalog, "v")
    refresh_rows(lake.catalog, "db.v", [7])
    refresh_rows(lake.catalog, "db.v", [0, 1])
    yield lake
    lake.close()


def send(lake: Lake, method: str, path: str, body: Any = None) -> Any:
    """Send a request that succeeds, and return the answer."""
    text = None if body is None else json.dumps(body)
    status, _, answer = lake.session.request(method, f"v1/{path}", body=text)
    assert status < 300, answer
    return json.loads(answer) if answer else None


def rename(lake: Lake, source: str, target: str) -> None:
    names = {
        key: {"namespace": name.split(".")[:-1], "name": name.split(".")[-1]}
        for key, name in (("source", source), ("destination", target))
    }
    send(lake, "POST", "views/rename", names)


def loaded(lake: Lake, name: str = "db.v") -> Any:
    """Load a view, and return the answer."""
    namespace, _, last = name.rpartition(".")
    return send(lake, "GET", f"namespaces/{namespace}/views/{last}")


def storage_of(lake: Lake, name: str = "db.v") -> Table:
    """The storage table, loaded by the identifier that the current version of the view has."""
    metadata = loaded(lake, name)["metadata"]
    current = metadata["current-version-id"]
    [version] = [one for one in metadata["versions"] if one["version-id"] == current]
    identifier = version["storage-table"]
    return lake.catalog.load_table((*identifier["namespace"], identifier["name"]))


def stored(table: Table) -> list[int]:
    """The rows of a storage table, sorted."""
    return sorted(table.scan().to_arrow()["a"].to_pylist())


def require_sound(lake: Lake, rows: list[int], name: str = "db.v") -> None:
    """Check that a view has these rows, and that its document and its storage table agree."""
    table = storage_of(lake, name)
    assert stored(table) == rows
    location = json.loads(loaded(lake, name)["metadata"]["properties"][DOCUMENT])["storage-table-location"]
    assert location == table.metadata_location
    assert stored(StaticTable.from_metadata(location)) == rows
    assert call(lake.session, "fsck") == []


def below(lake: Lake, name: str = "db.v") -> Path:
    """Return the folder of a view."""
    folder = local_path(loaded(lake, name)["metadata"]["location"])
    assert folder is not None
    return folder


def needed(lake: Lake, name: str = "db.v") -> set[Path]:
    """Return the files that a view and its storage table need, as determined by pyiceberg."""
    table, view = storage_of(lake, name), loaded(lake, name)
    found = {table.metadata_location, *(one.metadata_file for one in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    files = {local_path(location) for location in (*found, view["metadata-location"])}
    return {file for file in files if file is not None and file.exists()}


def run_now(lake: Lake, job: str, **arguments: Any) -> list[tuple[Any, ...]]:
    """Run a job that keeps no history and no recently dropped objects."""
    with connect(store=lake.store, warehouse=str(lake.warehouse), catalog="lake", **AT_ONCE) as session:
        return call(session, job, **arguments)


JOBS: dict[str, dict[str, Any]] = {
    "adopt": {"table": "db.w"},
    "compact_index": {},
    "expire": {"older_than": "0 s", "retain_last": 1},
    "export_metadata": {"overwrite": True},
    "fsck": {},
    "load_imported": {},
    "purge_dropped": {},
    "remove_orphans": {"dry_run": False},
    "storage_summary": {},
    "sweep": {},
    "trim": {},
}


@pytest.mark.parametrize("job", JOBS)
def test_a_view_that_was_renamed_and_replaced_is_sound_after_a_job(lake: Lake, job: str) -> None:
    rename(lake, "db.v", "db.w")
    refresh_rows(lake.catalog, "db.w", [4])
    create_materialized_view(lake.session.catalog, "w", "SELECT a + 1 AS a FROM t", replace=True)
    refresh_rows(lake.catalog, "db.w", [1, 2])
    refresh_rows(lake.catalog, "db.w", [1, 2, 3])
    create_materialized_view(lake.session.catalog, "gone")
    refresh_rows(lake.catalog, "db.gone", [9])
    call(lake.session, "drop_materialized_view", view="db.gone")
    lake.old()
    run_now(lake, job, **JOBS[job])
    require_sound(lake, [1, 2, 3], "db.w")
    refresh_rows(lake.catalog, "db.w", [5])
    require_sound(lake, [5], "db.w")


def test_orphans_of_a_view_are_exactly_the_files_that_neither_it_nor_its_storage_table_needs(
    lake: Lake,
) -> None:
    folder = below(lake)
    strays = {
        lake.stray((folder / name).relative_to(lake.warehouse))
        for name in ("x", "metadata/x.json", "storage/x", "storage/data/x.parquet", "storage/metadata/x.avro")
    }
    lake.old()
    there, keep = {file for file in lake.files() if folder in file.parents}, needed(lake)
    assert strays <= there - keep
    of_view = paths(lake.remove(table="db.v"), "would delete")
    assert of_view == there - keep - {folder / "x"}  # outside of both locations
    assert paths(lake.remove(dry_run=False), "deleted") == there - keep
    require_sound(lake, [0, 1])


def test_expired_rows_of_a_view_are_deleted_and_no_others(lake: Lake) -> None:
    before = set((below(lake) / "storage" / "data").iterdir())
    call(lake.session, "expire", older_than="0 s", retain_last=1)
    after = set((below(lake) / "storage" / "data").iterdir())
    assert (len(before), len(after)) == (2, 1)
    require_sound(lake, [0, 1])
    refreshes = json.loads(storage_of(lake).properties[DOCUMENT])["refreshes"]
    assert [len(one["snapshot-ids"]) for one in refreshes] == [1]


def test_a_namespace_protects_the_files_of_its_storage_tables(lake: Lake) -> None:
    properties = {"gc.enabled": "false"}
    send(lake, "POST", "namespaces/db/properties", {"updates": properties, "removals": []})
    stray = lake.stray((below(lake) / "storage" / "data" / "x.parquet").relative_to(lake.warehouse))
    lake.old()
    before = lake.files()
    call(lake.session, "expire", older_than="0 s", retain_last=1)
    lake.remove(dry_run=False)
    assert lake.files() == before
    assert stray in before
    assert len(storage_of(lake).snapshots()) == 2


def test_files_of_a_dropped_view_are_kept_until_its_drop_leaves_history(lake: Lake) -> None:
    folder, keep = below(lake), needed(lake)
    metadata = loaded(lake)["metadata-location"]
    call(lake.session, "drop_materialized_view", view="db.v")
    keep.add(Path(metadata.removeprefix("file://")))  # which a drop writes
    lake.old()
    lake.remove(dry_run=False)
    assert {file for file in lake.files() if folder in file.parents} == keep
    send(lake, "POST", "namespaces/db/register-view", {"name": "v", "metadata-location": metadata})
    require_sound(lake, [0, 1])
    call(lake.session, "drop_materialized_view", view="db.v")
    send(lake, "POST", "namespaces/db/properties", {"updates": {"x": "1"}, "removals": []})
    assert run_now(lake, "trim") != []
    lake.old()
    lake.remove(dry_run=False)
    assert {file for file in lake.files() if folder in file.parents} == set()
    assert call(lake.session, "fsck") == []


def test_a_purged_view_leaves_only_its_old_metadata_files_which_are_orphans(lake: Lake) -> None:
    folder, keep = below(lake), needed(lake)
    there = {file for file in lake.files() if folder in file.parents}
    call(lake.session, "drop_materialized_view", view="db.v", purge=True)
    left = {file for file in lake.files() if folder in file.parents}
    assert left == there - keep
    assert {file.parent.name for file in left} <= {"metadata"}
    lake.old()
    lake.remove(dry_run=False)
    assert not any(folder in file.parents for file in lake.files())
    assert call(lake.session, "purge_dropped") == []
    assert call(lake.session, "fsck") == []


def test_a_purge_that_another_branch_prevents_is_left_to_maintenance(lake: Lake) -> None:
    catalog = lake.session.catalog
    other = head_name(catalog.row, "side")
    catalog.references.create(other, Operation(b"", "me"), source=catalog.head())
    keep = needed(lake)
    call(lake.session, "drop_materialized_view", view="db.v", purge=True)
    call(lake.session, "purge_dropped")
    assert keep <= lake.files()
    catalog.references.drop(other, Operation(b"", "me"))
    assert paths(call(lake.session, "purge_dropped"), "deleted") == keep
    assert not keep & lake.files()


@pytest.mark.parametrize("of", ["view", "namespace"])
def test_a_view_whose_files_are_protected_is_not_purged(lake: Lake, of: str) -> None:
    updates = {"gc.enabled": "false"}
    if of == "namespace":
        send(lake, "POST", "namespaces/db/properties", {"updates": updates, "removals": []})
    else:
        change = {"action": "set-properties", "updates": updates}
        send(lake, "POST", "namespaces/db/views/v", {"requirements": [], "updates": [change]})
    with pytest.raises(BadRequestError, match=r"gc\.enabled is false"):
        call(lake.session, "drop_materialized_view", view="db.v", purge=True)
    require_sound(lake, [0, 1])


def test_a_view_is_exported_with_its_storage_table_and_registered_elsewhere(
    lake: Lake, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    exported = call(lake.session, "export_metadata", table="db.v", location=str(out))
    assert [row[:2] for row in exported] == [("db.v", "view"), ("db.v.storage", "table")]
    view, table = (json.loads(Path(row[2].removeprefix("file://")).read_text()) for row in exported)
    assert view == loaded(lake)["metadata"]
    assert DOCUMENT in table["properties"]
    assert call(lake.session, "export_metadata", table="db.t", location=str(out)) != []
    other = Lake(f"memory:{uuid.uuid4()}", tmp_path / "other")
    place = {"name": "copy", "metadata-location": exported[0][2]}
    send(other, "POST", "namespaces/db/register-view", place)
    require_sound(other, [0, 1], "db.copy")
    refresh_rows(other.catalog, "db.copy", [6])
    require_sound(other, [6], "db.copy")
    require_sound(lake, [0, 1])
    other.close()


def test_an_imported_view_is_an_ordinary_view(lake: Lake, tmp_path: Path) -> None:
    call(lake.session, "export_metadata", location=str(tmp_path / "out"))
    other = Lake(f"memory:{uuid.uuid4()}", tmp_path / "other")
    rows = call(other.session, "import_catalog", source="directory", location=str(tmp_path / "out"))
    [view] = [row.table for row in rows if row.kind == "view"]
    metadata = loaded(other, view)["metadata"]
    assert DOCUMENT not in metadata.get("properties", {})
    assert "storage-table" not in metadata["versions"][0]
    assert call(other.session, "fsck") == []
    other.close()


@pytest.mark.parametrize("by", ["migration", "file"])
def test_a_moved_realm_has_the_view_and_its_storage_table(lake: Lake, tmp_path: Path, by: str) -> None:
    target = f"sqlite://{tmp_path}/target.db"
    if by == "migration":
        call(lake.session, "migrate_realm", target=target)
    else:
        exported(lake.store, tmp_path / "lake.realm")
        imported(target, tmp_path / "lake.realm")
    moved = Lake(target, lake.warehouse)
    require_sound(moved, [0, 1])
    refresh_rows(moved.catalog, "db.v", [2])
    require_sound(moved, [2])
    moved.old()
    moved.remove(dry_run=False)
    require_sound(moved, [2])
    moved.close()


def test_after_a_lost_refresh_the_view_has_the_rows_of_the_one_before(lake: Lake, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/lake.db"
    lost = run("log", store, "--limit", "1", "--json").json[0]["id"]
    lake.close()
    with sqlite3.connect(tmp_path / "lake.db") as database:
        assert database.execute("DELETE FROM objects WHERE id = ?", (int(lost, 16),)).rowcount == 1
    process_cache().clear()
    assert run("recover", store, "--yes").code == 0
    again = Lake(store, lake.warehouse)
    require_sound(again, [7])
    refresh_rows(again.catalog, "db.v", [8])
    require_sound(again, [8])
    again.close()


def test_a_client_that_loaded_a_view_before_a_refresh_reads_the_earlier_rows(lake: Lake) -> None:
    before = loaded(lake)
    location = json.loads(before["metadata"]["properties"][DOCUMENT])["storage-table-location"]
    refresh_rows(lake.catalog, "db.v", [5])
    rename(lake, "db.v", "db.w")
    create_materialized_view(lake.session.catalog, "w", "SELECT a + 1 AS a FROM t", replace=True)
    lake.old()
    lake.remove(dry_run=False)
    assert stored(StaticTable.from_metadata(location)) == [0, 1]
    assert loaded(lake, "db.w")["metadata-location"] != before["metadata-location"]


def test_a_view_in_another_namespace_is_found_by_its_new_identifier(lake: Lake) -> None:
    lake.catalog.create_namespace("new")
    places = {loaded(lake)["metadata-location"]}
    rename(lake, "db.v", "new.w")
    require_sound(lake, [0, 1], "new.w")
    assert storage_of(lake, "new.w").name() == ("new", "w", "storage")
    assert not lake.catalog.table_exists("db.v.storage")
    for _ in range(2):
        places.add(loaded(lake, "new.w")["metadata-location"])
        refresh_rows(lake.catalog, "new.w", [3])
    places.add(loaded(lake, "new.w")["metadata-location"])
    assert len(places) == 4
    lake.catalog.drop_view("new.w")
    assert not lake.catalog.table_exists("new.w.storage")
    lake.catalog.drop_namespace("new")


def test_snapshots_that_expire_on_commit_change_the_view_in_the_same_commit(lake: Lake) -> None:
    call(lake.session, "alter_materialized_view", view="db.v", set_properties={"time-travel": "true"})
    refresh_rows(lake.catalog, "db.v", [1])
    settings = {"polaris.expire-on-commit": "true", "history.expire.max-snapshot-age-ms": "1"}
    call(lake.session, "alter_materialized_view", view="db.v", set_properties=settings)
    before, kept = loaded(lake), storage_of(lake)
    assert len(kept.snapshots()) == 3
    commits = lake.session.catalog.head().commit.number
    made = refresh_rows(lake.catalog, "db.v", [1, 2])
    assert lake.session.catalog.head().commit.number == commits + 1
    assert loaded(lake)["metadata-location"] != before["metadata-location"]
    table = storage_of(lake)
    assert [one.snapshot_id for one in table.snapshots()] == [table.metadata.current_snapshot_id]
    document = json.loads(table.properties[DOCUMENT])
    assert [one["refresh-id"] for one in document["refreshes"]] == [made["refresh-id"]]
    require_sound(lake, [1, 2])
    # A client that has loaded the view before reads its rows of that time, until `expire` deletes the files.
    then = json.loads(before["metadata"]["properties"][DOCUMENT])["storage-table-location"]
    assert stored(StaticTable.from_metadata(then)) == [1]
    [row] = run_now(lake, "expire", older_than="0 s", retain_last=1)[:1]
    assert row is not None
    require_sound(lake, [1, 2])
