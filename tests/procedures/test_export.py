"""`export_metadata`: which files it writes, where, and which it does not overwrite."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.errors import BadRequestError, InputError, PolarisError
from polaris_spark.jobs.registry import call
from tests.catalog.imports.support import run
from tests.catalog.metadata.tables import NOW, snapshot
from tests.catalog.metadata.test_rendering import imported
from tests.names import unchecked_names
from tests.rest.client import Client, connect, set_properties, table_request, tables, view_request

NEVER = {"metadata-files": "never"}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Client]:
    """A catalog that writes no metadata files, with tables db.t and db.inner.t and a view db.v."""
    client = connect(f"sqlite://{tmp_path / 'catalog.db'}", tmp_path / "warehouse", **NEVER)
    client.namespace("db")
    client.namespace("db", "inner")
    client.create()
    client.create(namespace=("db", "inner"))
    client.ok("POST", "v1/namespaces/db/views", view_request("v"))
    yield client
    client.session.close()


def export(client: Client, **arguments: Any) -> dict[str, tuple[str, Path, str]]:
    """Return kind, file and outcome by name."""
    done = call(client.session, "export_metadata", **arguments)
    return {name: (kind, Path(where.removeprefix("file://")), outcome) for name, kind, where, outcome in done}


def served(client: Client, name: str = "t", namespace: tuple[str, ...] = ("db",)) -> Any:
    return client.load(name, namespace)["metadata"]


def content(file: Path) -> Any:
    text = file.read_bytes()
    return json.loads(gzip.decompress(text) if ".gz." in file.name else text)


def test_the_whole_catalog_goes_to_its_metadata_locations(catalog: Client) -> None:
    done = export(catalog)
    assert {name: kind for name, (kind, _, _) in done.items()} == {
        "db.t": "table",
        "db.v": "view",
        "db.inner.t": "table",
    }
    assert {outcome for _, _, outcome in done.values()} == {"written"}
    assert str(done["db.t"][1]) == catalog.load()["metadata-location"].removeprefix("file://")
    assert content(done["db.t"][1]) == served(catalog)
    assert content(done["db.inner.t"][1]) == served(catalog, "t", ("db", "inner"))
    view = catalog.ok("GET", "v1/namespaces/db/views/v")
    assert content(done["db.v"][1]) == view["metadata"]


def test_exported_tables_can_be_registered_elsewhere(catalog: Client, tmp_path: Path) -> None:
    file = export(catalog, table="db.t")["db.t"][1]
    other = connect("memory:elsewhere", tmp_path / "elsewhere")
    other.namespace("db")
    body = {"name": "copy", "metadata-location": f"file://{file}"}
    assert other.ok("POST", "v1/namespaces/db/register", body)["metadata"] == served(catalog)
    other.session.close()


def test_a_second_time_nothing_is_written(catalog: Client) -> None:
    catalog.ok(
        "POST", tables("db"), table_request("zipped", properties={"write.metadata.compression-codec": "gzip"})
    )
    first = export(catalog)
    times = {name: file.stat().st_mtime_ns for name, (_, file, _) in first.items()}
    assert first["db.zipped"][1].name.endswith(".gz.metadata.json")
    assert content(first["db.zipped"][1]) == served(catalog, "zipped")
    second = export(catalog)
    assert {outcome for _, _, outcome in second.values()} == {"unchanged"}
    assert {name: file.stat().st_mtime_ns for name, (_, file, _) in second.items()} == times


def test_a_newer_version_goes_beside_the_older_one(catalog: Client) -> None:
    old = export(catalog)["db.t"][1]
    catalog.commit("t", set_properties(a="ü"))
    new = export(catalog)
    assert [new[name][2] for name in ("db.t", "db.v")] == ["written", "unchanged"]
    assert new["db.t"][1] != old
    assert content(new["db.t"][1])["properties"]["a"] == "ü"


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"table": "db.t"}, {"db.t"}),
        ({"table": "`db`.`v`"}, {"db.v"}),
        ({"table": "polaris.db.inner.t"}, {"db.inner.t"}),
        ({"namespace": "db.inner"}, {"db.inner.t"}),
        ({"namespace": "db"}, {"db.t", "db.v", "db.inner.t"}),
        ({"namespace": "polaris.db.inner"}, {"db.inner.t"}),
    ],
)
def test_a_table_or_a_namespace_can_be_chosen(
    catalog: Client, arguments: dict[str, str], names: set[str]
) -> None:
    assert set(export(catalog, **arguments)) == names


def test_a_namespace_of_the_catalogs_name_comes_before_the_catalog(catalog: Client) -> None:
    catalog.namespace("polaris")
    catalog.namespace("polaris", "db")
    catalog.create("mine", ("polaris", "db"))
    assert set(export(catalog, table="polaris.db.mine")) == {"polaris.db.mine"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"table": "t"}, "write it like db.t"),
        ({"table": ""}, "write it like db.t"),
        ({"table": "db."}, "write it like db.t"),
        ({"table": "db.``"}, "write it like db.t"),
        ({"table": "db.`t"}, "write it like db.t"),
        ({"namespace": ""}, "write it like db"),
        ({"table": "db.nosuch"}, "there is no table or view db.nosuch"),
        ({"table": "db.t'; DROP TABLE db.t; --"}, "there is no table or view db.t'; DROP TABLE db.t; --"),
        ({"namespace": "nosuch"}, "there is no namespace nosuch"),
        ({"table": "db.t", "namespace": "db"}, "not both"),
        ({"tables": "db.t"}, "no parameter 'tables'"),
        ({"table": "db.t", "location": "gopher://x/y"}, "gopher"),
        ({"table": "db." + "x" * 10_000}, "use shorter names"),
    ],
)
def test_exports_that_are_not_possible_are_refused(
    catalog: Client, arguments: dict[str, str], said: str
) -> None:
    with pytest.raises(PolarisError) as caught:
        export(catalog, **arguments)
    assert said in str(caught.value)
    assert served(catalog)


def test_a_directory_takes_all_files_below_it_whatever_their_names(catalog: Client, tmp_path: Path) -> None:
    names = ["..", "a/b", "a b", "ü𝄞", "x" * 255, "`", "a.b", "'; DROP TABLE t; --"]
    for name in names:
        with unchecked_names():
            catalog.ok("POST", tables("db"), table_request(name))
    directory = tmp_path / "exported"
    done = export(catalog, location=str(directory))
    assert len(done) == len(names) + 3
    files = {file for _, file, _ in done.values()}
    assert len(files) == len(done)
    assert {file for file in directory.rglob("*") if file.is_file()} == files
    assert content(done["db.`a.b`"][1])["location"] == served(catalog, "a.b")["location"]
    assert not Path(catalog.load()["metadata-location"].removeprefix("file://")).exists()
    assert {outcome for _, _, outcome in export(catalog, location=str(directory)).values()} == {"unchanged"}


def test_a_uuid_that_is_a_path_does_not_lead_out_of_the_directory(catalog: Client, tmp_path: Path) -> None:
    """Clients of a server can set it to any text."""
    assert catalog.commit("t", {"action": "assign-uuid", "uuid": "x/../../../../outside"}).status == 200
    place = tmp_path / "a" / "b"
    _, file, outcome = export(catalog, table="db.t", location=str(place))["db.t"]
    assert outcome == "written"
    assert place in file.resolve().parents


@pytest.mark.parametrize("there", [b"", b"not JSON", b"{}", b'{"format-version": 2}', b"[" * 100_000])
def test_a_file_of_other_content_is_left_alone_unless_it_may_be_replaced(
    catalog: Client, there: bytes
) -> None:
    file = export(catalog, table="db.t")["db.t"][1]
    file.write_bytes(there)
    checksum = file.with_name(f".{file.name}.crc")
    checksum.write_bytes(b"crc")
    with pytest.raises(BadRequestError, match=r"1 of 3 .* db\.t: .* was not changed"):
        export(catalog)
    assert file.read_bytes() == there
    assert export(catalog, overwrite=True)["db.t"][2] == "replaced"
    assert content(file) == served(catalog)
    assert not checksum.exists()
    assert list(file.parent.iterdir()) == [file]


def test_files_that_cannot_be_written_are_reported_after_the_others_were_written(catalog: Client) -> None:
    done = export(catalog)
    folder = done["db.t"][1].parent
    for _, file, _ in done.values():
        file.unlink()
    shutil.rmtree(folder)
    folder.write_text("no folder")
    with pytest.raises(BadRequestError, match=r"1 of 3 metadata files were not written, for example db\.t: "):
        export(catalog)
    assert done["db.v"][1].exists()
    assert done["db.inner.t"][1].exists()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_imported_table_of_a_thousand_snapshots_is_exported_field_by_field(
    catalog: Client, tmp_path: Path, version: int
) -> None:
    value = imported(version)
    numbers = range(100, 1100)
    value["snapshots"] += [snapshot(n, 0 if version == 1 else 4, later={"n": n}) for n in numbers]
    value["snapshot-log"] += [{"timestamp-ms": NOW + n, "snapshot-id": n} for n in numbers]
    value["snapshot-log"].append({"timestamp-ms": NOW + 8000, "snapshot-id": 11})
    value["location"] = str(tmp_path / "outside")
    file = tmp_path / "v7.metadata.json"
    file.write_text(json.dumps(value))
    body = {"name": "imported", "metadata-location": str(file)}
    catalog.ok("POST", "v1/namespaces/db/register", body)
    assert export(catalog, table="db.imported")["db.imported"][2] == "unchanged"
    assert json.loads(file.read_text()) == value
    written = content(export(catalog, table="db.imported", location=str(tmp_path / "out"))["db.imported"][1])
    assert written == served(catalog, "imported")
    # Version 1 repeats the current schema and spec; we leave the copies out, as Iceberg does.
    assert written == {k: v for k, v in value.items() if k in written}
    assert set(value) - set(written) <= {"schema", "partition-spec"}


def test_a_registered_file_in_other_words_counts_as_the_metadata(catalog: Client, tmp_path: Path) -> None:
    file = export(catalog, table="db.t")["db.t"][1]
    value = content(file)
    terse = {k: v for k, v in value.items() if v not in ([], {}, None)}
    terse["location"] = str(tmp_path / "terse")
    place = tmp_path / "v1.metadata.json"
    place.write_text(json.dumps(terse, indent=4))
    catalog.ok("POST", "v1/namespaces/db/register", {"name": "terse", "metadata-location": str(place)})
    assert export(catalog, table="db.terse")["db.terse"][2] == "unchanged"
    terse["properties"] = {"someone": "else"}
    place.write_text(json.dumps(terse))
    with pytest.raises(BadRequestError, match="was not changed"):
        export(catalog, table="db.terse")


def test_a_table_that_was_imported_unread_is_exported_as_the_file_that_it_names(
    catalog: Client, tmp_path: Path
) -> None:
    file = export(catalog, table="db.t")["db.t"][1]
    tree = tmp_path / "tree" / "db" / "copy" / "metadata"
    tree.mkdir(parents=True)
    metadata = content(file) | {"location": str(tree.parent)}
    (tree / "v1.metadata.json").write_text(json.dumps(metadata))
    run(catalog, DirectoryTree(str(tmp_path / "tree"), {}), lazy=True)
    assert export(catalog, table="db.copy")["db.copy"][2] == "unchanged"
    done = export(catalog, table="db.copy", location=str(tmp_path / "out"))["db.copy"]
    assert (content(done[1]), done[2]) == (metadata, "written")


def test_exports_at_the_same_time_do_not_hinder_each_other(catalog: Client) -> None:
    for n in range(20):
        catalog.create(f"t{n}")
    with ThreadPoolExecutor(8) as threads:
        runs = [threads.submit(export, catalog, namespace="db") for _ in range(8)]
        outcomes = [outcome for run in runs for _, _, outcome in run.result().values()]
    assert len(outcomes) == 8 * 23
    assert set(outcomes) <= {"written", "unchanged"}


def test_null_arguments_are_as_if_left_out(catalog: Client) -> None:
    assert len(export(catalog, table=None, namespace=None, location=None, overwrite=None)) == 3
    with pytest.raises(InputError, match="'overwrite' is 'yes'"):
        export(catalog, overwrite="yes")


@pytest.mark.parametrize("location", ["", "out", "./out", "file:", "s3:out"])
def test_a_location_that_depends_on_the_process_is_refused(catalog: Client, location: str) -> None:
    with pytest.raises(InputError, match=f"location '{location}' "):
        export(catalog, location=location)
