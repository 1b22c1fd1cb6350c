"""Folders that imported tables and views own. Jobs therefore delete no files in these folders."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from polaris_spark.catalog.files import ownership
from polaris_spark.catalog.files.locations import segments
from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.catalog.imports.importer import ImportOptions
from polaris_spark.catalog.imports.jobs import load_imported
from polaris_spark.catalog.imports.open_source import open_source
from polaris_spark.catalog.metadata.rows import EMPTY_TABLE, EMPTY_VIEW, Table, View
from polaris_spark.catalog.rows import Unloaded
from polaris_spark.catalog.tables.contents import places
from polaris_spark.commits.log import entries
from polaris_spark.errors import InputError, NoSuchTableError
from polaris_spark.jobs.registry import call
from polaris_spark.objects import decode, encode
from tests.catalog.imports.support import run, statuses, table_in, table_metadata, view_metadata, write
from tests.maintenance.lakes import age
from tests.rest.client import Client, table, tables
from tests.rest.conftest import Open

Bring = Callable[[Client, Path, str], None]
"""Imports or registers the table db.t, which lies below a folder, by its metadata file."""


def imports(client: Client, root: Path, file: str) -> None:
    assert statuses(run(client, DirectoryTree(str(root), {}))) == {"db.t": "imported"}


def imports_by_hadoop(client: Client, root: Path, file: str) -> None:
    assert statuses(run(client, DirectoryTree(str(root), {}, hadoop=True))) == {"db.t": "imported"}


def imports_and_loads_by_a_job(client: Client, root: Path, file: str) -> None:
    run(client, DirectoryTree(str(root), {}), lazy=True)
    load_imported(client.session.catalog, principal="loader", options=ImportOptions())


def imports_and_loads_on_first_use(client: Client, root: Path, file: str) -> None:
    run(client, DirectoryTree(str(root), {}), lazy=True)
    client.load()


def imports_without_loading(client: Client, root: Path, file: str) -> None:
    run(client, DirectoryTree(str(root), {}), lazy=True)


def registers(client: Client, root: Path, file: str) -> None:
    client.ok("POST", "v1/namespaces/db/register", {"name": "t", "metadata-location": file})


def replaces_by_import(client: Client, root: Path, file: str) -> None:
    client.create()
    assert statuses(run(client, DirectoryTree(str(root), {}), overwrite=True)) == {"db.t": "replaced"}


def replaces_by_registration(client: Client, root: Path, file: str) -> None:
    client.create()
    body = {"name": "t", "metadata-location": file, "overwrite": True}
    client.ok("POST", "v1/namespaces/db/register", body)


def imports_by_a_catalog_in_sql(client: Client, root: Path, file: str) -> None:
    database = f"sqlite:///{root.parent}/source.db"
    source = SqlCatalog("source", uri=database, warehouse=f"file://{root}")
    source.create_namespace("db")
    source.register_table("db.t", file)
    assert statuses(run(client, open_source("sql", database, {}, {}))) == {"db.t": "imported"}


WAYS = [
    imports,
    imports_by_hadoop,
    imports_and_loads_by_a_job,
    imports_and_loads_on_first_use,
    imports_without_loading,
    registers,
    replaces_by_import,
    replaces_by_registration,
    imports_by_a_catalog_in_sql,
]


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A foreign folder with an old file."""
    folder = tmp_path / "precious"
    folder.mkdir()
    stray(folder / "a")
    return folder


def stray(file: Path) -> Path:
    """An old file to which no table refers."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x")
    age(file, 10)
    return file


def lying(root: Path, **metadata: Any) -> str:
    """Write a metadata file of the table db.t with arbitrary content. Returns the location of the file."""
    folder = root / "db" / "t"
    given: dict[str, Any] = {"location": f"file://{folder}", "snapshots": 0, **metadata}
    where = given.pop("location").removeprefix("file://")
    return write(folder, table_metadata(where, **given), "v1.metadata.json")


def removed(client: Client, **arguments: Any) -> set[str]:
    """Return the files that `remove_orphans` deletes."""
    rows = call(client.session, "remove_orphans", dry_run=False, **arguments)
    return {row[0].removeprefix("file://") for row in rows if row[4] == "deleted"}


def adopted(client: Client, **arguments: Any) -> dict[str, str]:
    """Return locations, each with the outcome of `adopt`."""
    rows = call(client.session, "adopt", **{"table": "db.t", **arguments})
    return {location.removeprefix("file://"): reason or outcome for location, outcome, reason in rows}


def faults(client: Client) -> list[tuple[Any, ...]]:
    return call(client.session, "fsck")


@pytest.mark.parametrize("bring", WAYS, ids=lambda way: way.__name__)
def test_no_job_deletes_in_a_location_outside_the_metadata_folder_until_it_is_adopted(
    catalog: Client, root: Path, precious: Path, bring: Bring
) -> None:
    bring(catalog, root, lying(root, location=f"file://{precious}"))
    assert removed(catalog) == set()
    assert removed(catalog, table="db.t") == set()
    assert (precious / "a").exists()
    assert faults(catalog) == []
    assert adopted(catalog) == {str(precious): "adopted"}
    assert faults(catalog) == []
    assert removed(catalog) == {str(precious / "a")}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path", "write.object-storage.path"])
def test_no_job_deletes_in_a_data_path_outside_the_metadata_folder_until_it_is_adopted(
    catalog: Client, root: Path, precious: Path, name: str, version: int
) -> None:
    imports(catalog, root, lying(root, version=version, properties={name: f"file://{precious}"}))
    own = stray(root / "db" / "t" / "data" / "x")
    assert removed(catalog) == {str(own)}
    assert adopted(catalog) == {str(precious): "adopted"}
    assert removed(catalog) == {str(precious / "a")}


def test_a_table_whose_metadata_lies_below_its_location_owns_its_folder(catalog: Client, root: Path) -> None:
    lying(root)
    rows = run(catalog, DirectoryTree(str(root), {}))
    assert [row.message for row in rows] == [None]
    assert removed(catalog) == set()
    own = stray(root / "db" / "t" / "data" / "x")
    assert removed(catalog) == {str(own)}
    assert adopted(catalog) == {}


def test_the_result_and_the_log_name_the_locations_that_are_not_owned(
    catalog: Client, root: Path, precious: Path
) -> None:
    lying(root, location=f"file://{precious}")
    for dry_run in (True, False):
        (row,) = run(catalog, DirectoryTree(str(root), {}), dry_run=dry_run)
        assert row.message is not None
        assert f"file://{precious}" in row.message
        assert "adopt(table => 'db.t')" in row.message
    head = catalog.session.catalog.head()
    logged = [entry for _, _, _, entry in entries(head.store, head.head) if entry.action == "import-table"]
    assert [entry.summary for entry in logged] == [{"unconfirmed-locations": f"file://{precious}"}]


@pytest.mark.parametrize("claimed", ["{root}", "{root}/db", "{root}/db/x", "{root}/db/t2", "{tmp}/store"])
def test_folders_around_and_beside_the_metadata_are_not_owned(
    catalog: Client, root: Path, tmp_path: Path, claimed: str
) -> None:
    place = Path(claimed.format(root=root, tmp=tmp_path))
    imports(catalog, root, lying(root, location=f"file://{place}"))
    kept = [stray(place / "a"), stray(place / "deeper" / "b")]
    assert removed(catalog) == set()
    assert all(file.exists() for file in kept)


def test_a_folder_inside_the_one_of_the_metadata_is_owned(catalog: Client, root: Path) -> None:
    inner = root / "db" / "t" / "inner"
    imports(catalog, root, lying(root, location=f"file://{inner}"))
    beside, inside = stray(root / "db" / "t" / "x"), stray(inner / "x")
    assert removed(catalog) == {str(inside)}
    assert beside.exists()


def test_the_target_of_a_link_inside_the_metadata_folder_is_not_owned(
    catalog: Client, root: Path, precious: Path
) -> None:
    link = root / "db" / "t" / "link"
    link.parent.mkdir(parents=True)
    link.symlink_to(precious)
    imports(catalog, root, lying(root, location=f"file://{link}"))
    assert removed(catalog) == set()
    assert (precious / "a").exists()


def test_a_location_under_another_name_of_the_same_folder_is_owned_and_cleaned_by_its_real_name(
    catalog: Client, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(root)
    imports(catalog, root, lying(root, location=f"file://{tmp_path}/alias/db/t"))
    assert adopted(catalog) == {}
    own = stray(root / "db" / "t" / "x")
    assert removed(catalog) == set()  # on the path to a location outside the warehouse no link is followed
    assert removed(catalog, location=str(root / "db" / "t")) == {str(own)}
    assert not own.exists()


def test_a_location_in_another_storage_is_not_owned(catalog: Client, root: Path) -> None:
    lying(root, location="s3://bucket/elsewhere")
    (row,) = run(catalog, DirectoryTree(str(root), {}))
    assert row.message is not None
    assert "s3://bucket/elsewhere" in row.message
    assert removed(catalog) == set()


@pytest.mark.parametrize("location", ["/", "file:///", "relative/path", "file:///a/../b"])
def test_a_malformed_location_is_reported_and_not_owned(catalog: Client, root: Path, location: str) -> None:
    write(root / "db" / "t", table_metadata("/x", snapshots=0) | {"location": location})
    table_in(root, "db", "fine", number=2, snapshots=0)
    rows = run(catalog, DirectoryTree(str(root), {}))
    assert statuses(rows) == {"db.fine": "imported", "db.t": "failed"}
    assert removed(catalog) == set()


def test_views_own_no_folder_elsewhere(catalog: Client, root: Path, precious: Path) -> None:
    write(root / "db" / "t", view_metadata(precious))
    assert statuses(run(catalog, DirectoryTree(str(root), {}))) == {"db.t": "imported"}
    assert removed(catalog) == set()
    assert adopted(catalog) == {str(precious): "adopted"}
    assert removed(catalog) == {str(precious / "a")}


def test_an_orphan_in_the_warehouse_is_kept_in_a_location_that_an_imported_table_reads(
    catalog: Client, root: Path, warehouse: Path
) -> None:
    place = warehouse / "shared"
    imports(catalog, root, lying(root, location=f"file://{place}"))
    kept, gone = stray(place / "a"), stray(warehouse / "b")
    assert removed(catalog) == {str(gone)}
    assert kept.exists()


def test_orphans_of_another_table_inside_an_unconfirmed_location_are_still_deleted(
    catalog: Client, root: Path, warehouse: Path
) -> None:
    imports(catalog, root, lying(root, location=f"file://{warehouse}/db"))
    location = catalog.create("u", location=f"file://{warehouse}/db/u")["metadata"]["location"]
    own = stray(Path(location.removeprefix("file://")) / "data" / "x")
    kept = stray(warehouse / "db" / "x")
    assert removed(catalog) == {str(own)}
    assert kept.exists()
    assert "overlaps" in adopted(catalog)[f"{warehouse}/db"]


def test_a_commit_keeps_a_location_unconfirmed_until_it_names_another(
    catalog: Client, root: Path, precious: Path, tmp_path: Path
) -> None:
    imports(catalog, root, lying(root, location=f"file://{precious}"))
    catalog.set("t", x="1")
    assert adopted(catalog, dry_run=True) == {str(precious): "would be adopted"}
    inner = f"file://{precious}/inner"
    assert catalog.commit("t", {"action": "set-location", "location": inner}).status == 200
    assert adopted(catalog, dry_run=True) == {str(precious): "would be adopted"}
    chosen = f"file://{tmp_path}/chosen"
    assert catalog.commit("t", {"action": "set-location", "location": chosen}).status == 200
    assert adopted(catalog) == {}
    assert removed(catalog) == set()
    assert faults(catalog) == []


def test_purging_deletes_no_file_in_a_location_that_is_not_owned(
    catalog: Client, root: Path, warehouse: Path
) -> None:
    place = warehouse / "other"
    victim = stray(place / "puffin")
    statistics = {
        "snapshot-id": 1,
        "statistics-path": f"file://{victim}",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    lying(root, location=f"file://{place}", statistics=[statistics])
    run(catalog, DirectoryTree(str(root), {}))
    catalog.ok("DELETE", table("t"), query={"purgeRequested": "true"})
    assert victim.exists()
    call(catalog.session, "purge_dropped")
    assert victim.exists()


def test_reading_a_location_does_not_take_it_from_the_table_that_owns_it(
    catalog: Client, root: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    folder = other / "db" / "t"
    imports(catalog, root, lying(root, location=f"file://{folder}"))
    catalog.create("owner", location=f"file://{folder}")
    table_in(other, "db", "t")
    rows = run(catalog, DirectoryTree(str(other), {}), overwrite=True)
    assert [(row.status, "overlaps" in (row.message or "")) for row in rows] == [("conflict", True)]


def test_dropping_a_table_releases_its_unconfirmed_locations(
    catalog: Client, root: Path, precious: Path
) -> None:
    imports(catalog, root, lying(root, location=f"file://{precious}"))
    catalog.ok("DELETE", table("t"))
    assert faults(catalog) == []
    assert catalog.create("u", location=f"file://{precious}")


def test_a_dry_run_of_adopt_changes_nothing(catalog: Client, root: Path, precious: Path) -> None:
    imports(catalog, root, lying(root, location=f"file://{precious}"))
    for _ in range(2):
        assert adopted(catalog, dry_run=True) == {str(precious): "would be adopted"}
    assert removed(catalog) == set()


def test_adopt_refuses_the_name_of_a_missing_table(catalog: Client) -> None:
    with pytest.raises(NoSuchTableError, match=r"db\.missing"):
        adopted(catalog, table="db.missing")
    with pytest.raises(InputError, match=r"write it like db\.t"):
        adopted(catalog, table="t")


def test_a_folder_with_another_tables_metadata_is_not_adopted(
    catalog: Client, root: Path, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    other = table_in(lake, "db", "other", number=2)
    imports(catalog, root, lying(root, location=f"file://{lake}"))
    assert other in adopted(catalog)[str(lake)]
    assert removed(catalog) == set()


def test_a_folder_with_another_tables_metadata_behind_a_link_is_not_adopted(
    catalog: Client, root: Path, precious: Path, tmp_path: Path
) -> None:
    kept = write(tmp_path / "kept", table_metadata(precious, number=2))
    (precious / "metadata").mkdir()
    (precious / "metadata" / "v1.metadata.json").symlink_to(kept.removeprefix("file://"))
    imports(catalog, root, lying(root, location=f"file://{precious}"))
    assert "another table" in adopted(catalog)[str(precious)]


def test_a_folder_with_another_table_around_this_one_is_not_adopted(
    catalog: Client, root: Path, precious: Path
) -> None:
    """The outer table has a problem of its own: its folder contains another table."""
    imports(catalog, root, lying(root, location=f"file://{precious}"))
    outer = write(precious, table_metadata(precious, number=2))
    table_in(precious, "inner")
    (reason,) = adopted(catalog).values()
    assert outer in reason
    assert removed(catalog) == set()


def test_a_link_in_a_folder_does_not_prevent_its_adoption(
    catalog: Client, root: Path, precious: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    table_in(other, "db", "u", number=2)
    (precious / "link").symlink_to(other)
    imports(catalog, root, lying(root, location=f"file://{precious}"))
    assert adopted(catalog) == {str(precious): "adopted"}
    assert removed(catalog) == {str(precious / "a")}


GARBLED = pytest.mark.parametrize(
    "text", [b'{"x":' + b"[" * 100_000, b'{"location": "\xff"}', b"{"], ids=["deep", "not UTF-8", "cut off"]
)


@GARBLED
def test_a_garbled_metadata_file_keeps_only_what_its_table_may_need(
    catalog: Client, root: Path, text: bytes
) -> None:
    write(root / "db" / "t", text, "v1.metadata.json")
    run(catalog, DirectoryTree(str(root), {}), lazy=True)
    catalog.create("sound")
    inside = stray(Path(catalog.load("sound")["metadata"]["location"].removeprefix("file://")) / "data" / "x")
    own = stray(root / "db" / "t" / "data" / "x")
    assert removed(catalog) == {str(inside)}
    assert own.exists()


@GARBLED
def test_a_folder_with_a_garbled_metadata_file_is_not_adopted(
    catalog: Client, root: Path, precious: Path, text: bytes
) -> None:
    write(precious / "other", text, "v1.metadata.json")
    imports(catalog, root, lying(root, location=f"file://{precious}"))
    assert adopted(catalog)[str(precious)].startswith(
        ("it may contain another table", "it contains another table")
    )


def test_a_folder_of_another_catalogs_table_is_not_adopted(
    catalog: Client, opened: Open, root: Path, tmp_path: Path
) -> None:
    place = tmp_path / "lake"
    imports(catalog, root, lying(root, location=f"file://{place}"))
    other = opened(str(catalog.session.connection.uri), tmp_path / "other", catalog="other")
    other.namespace("db")
    other.create("u", location=f"file://{place}/u")
    assert "other" in adopted(catalog)[str(place)]


@pytest.mark.parametrize("name", [".", "deep/er"])
def test_no_table_owns_a_home_folder(
    catalog: Client, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    home = tmp_path / "homes"
    kept = stray(home / "a")
    monkeypatch.setenv("HOME", str(home / name))
    imports(catalog, root, lying(root, location=f"file://{home}"))
    assert "home" in adopted(catalog)[str(home)]
    assert removed(catalog) == set()
    refused = catalog.send("POST", tables("db"), {"name": "u", "schema": {"type": "struct", "fields": []},
                                                  "location": f"file://{home}"})  # fmt: skip
    assert refused.kind == (403, "ForbiddenException")
    assert kept.exists()


@pytest.mark.parametrize("lazy", [True, False])
def test_a_home_folder_with_metadata_in_it_is_not_owned(
    catalog: Client, root: Path, monkeypatch: pytest.MonkeyPatch, lazy: bool
) -> None:
    lying(root)
    home = root / "db" / "t"
    monkeypatch.setenv("HOME", str(home))
    (row,) = run(catalog, DirectoryTree(str(root), {}), lazy=lazy)
    assert row.message is not None
    kept = stray(home / "a")
    assert removed(catalog) == set()
    assert kept.exists()
    assert faults(catalog) == []


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("s3://bucket", "root"),
        ("hdfs://nn/", "root"),
        ("/root", "home folder"),
        ("/home", "contains home folders"),
        ("/home/anna", "home folder"),
        ("/Users", "contains home folders"),
        ("/Users/anna", "home folder"),
        ("/home/anna/lake", ""),
        ("s3://bucket/t", ""),
        ("/lake/t", ""),
    ],
)
def test_roots_and_home_folders_are_recognized(
    monkeypatch: pytest.MonkeyPatch, location: str, why: str
) -> None:
    monkeypatch.setenv("HOME", "/nobody")
    found = ownership.unownable(segments(location))
    assert why in found
    assert bool(found) == bool(why)


def test_a_link_to_a_home_folder_is_not_owned(
    catalog: Client, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "link").symlink_to(home)
    imports(catalog, root, lying(root, location=f"file://{tmp_path}/link"))
    assert "home" in adopted(catalog)[f"{tmp_path}/link"]


@pytest.mark.parametrize(
    "value",
    [
        msgspec.structs.replace(EMPTY_TABLE, location="s3://b/t"),
        msgspec.structs.replace(EMPTY_VIEW, location="s3://b/t"),
        Unloaded(7, "s3://b/t/metadata/v1.metadata.json"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_rows_of_older_releases_own_all_locations_that_they_name(value: Table | View | Unloaded) -> None:
    data = encode(value)
    start = struct.calcsize(">BHI")
    length = struct.unpack_from(">BHI", data)[2]
    fields = msgspec.msgpack.decode(data[start + length :])
    newer: list[Any] = {Table: [[], None, None], View: [[], ""], Unloaded: [[]]}[type(value)]
    assert fields[-len(newer) :] == newer
    older = decode(data[: start + length] + msgspec.msgpack.encode(fields[: -len(newer)]), "key").value
    assert older == value
    assert places(value) == {("s3://b", "t")}


def test_over_http_a_file_names_only_locations_that_the_server_allows(
    catalog: Client, root: Path, precious: Path
) -> None:
    session = catalog.session
    session.catalog = session.catalog.restricted([f"file://{root}"])
    body = {"name": "t", "metadata-location": lying(root, location=f"file://{precious}")}
    refused = catalog.send("POST", "v1/namespaces/db/register", body)
    assert refused.kind == (403, "ForbiddenException")
    beside = root / "beside"
    kept = stray(beside / "a")
    registers(catalog, root, lying(root, location=f"file://{beside}"))
    assert removed(catalog) == set()
    assert kept.exists()
