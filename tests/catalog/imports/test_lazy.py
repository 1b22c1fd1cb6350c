"""Lazy imports: the catalog stores only the location of the metadata file, and loads it when the table or view is first
used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.catalog.imports.importer import ImportOptions, Row
from polaris_spark.catalog.imports.jobs import UnloadedContents, load_imported
from polaris_spark.catalog.imports.sources import SourceEntry
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW, Unloaded
from polaris_spark.commits.log import entries
from polaris_spark.errors import BadRequestError
from tests.catalog.imports.support import (
    Entries,
    run,
    statuses,
    table_in,
    table_metadata,
    view_metadata,
    write,
)
from tests.rest.client import Client, at_once, identifier, new_key, rename, set_properties, table, view


def lazily(client: Client, root: Path) -> list[Row]:
    return run(client, DirectoryTree(str(root), {}), lazy=True)


def actions(client: Client) -> list[str]:
    head = client.session.catalog.head()
    return [entry.action for _, _, _, entry in entries(head.store, head.head)][::-1]


def unloaded(client: Client) -> int:
    head = client.session.catalog.head()
    found = head.store.read([entry.pointer for _, entry in head.index(NAMES).range()])
    return sum(isinstance(one.value, Unloaded) for one in found.values())


def load_all(client: Client, **options: Any) -> list[Row]:
    catalog = client.session.catalog
    return load_imported(catalog, principal="loader", options=ImportOptions(**options))


def test_tables_are_registered_without_reading_their_files(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t")
    Path(where.removeprefix("file://")).write_text("{")
    assert lazily(catalog, root) == [("db.t", "table", where, "registered", None)]
    assert catalog.names("db") == ["t"]
    assert catalog.send("HEAD", table("t")).status == 204
    assert unloaded(catalog) == 1


def test_a_namespace_to_load_exists(catalog: Client, root: Path) -> None:
    table_in(root, "db", "t")
    lazily(catalog, root)
    with pytest.raises(BadRequestError, match="there is no namespace zz"):
        load_all(catalog, namespaces=["db", "zz"])
    assert unloaded(catalog) == 1
    assert len(load_all(catalog, namespaces=["db"])) == 1


def test_the_first_load_reads_the_file_and_answers_with_it(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t", snapshots=3)
    lazily(catalog, root)
    first = catalog.send("GET", table("t"))
    assert first.body["metadata-location"] == where
    assert first.body["metadata"] == table_metadata(root / "db" / "t", snapshots=3)
    assert unloaded(catalog) == 0
    assert actions(catalog)[-1] == "load-imported"
    again = catalog.send("GET", table("t"), headers={"If-None-Match": first.headers["ETag"]})
    assert again.status == 304
    assert catalog.load()["metadata-location"] == where


def test_the_first_commit_loads_it_and_goes_on_from_there(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t", snapshots=3)
    lazily(catalog, root)
    key = new_key()
    for _ in range(2):
        answer = catalog.commit("t", set_properties(a="1"), key=key)
        assert answer.status == 200
        assert [one["metadata-file"] for one in answer.body["metadata"]["metadata-log"]] == [where]
    assert actions(catalog)[-2:] == ["load-imported", "update-table"]


def test_a_transaction_loads_all_of_its_tables(catalog: Client, root: Path) -> None:
    for number, name in enumerate(("t", "u", "w")):
        table_in(root, "db", name, number=number)
    lazily(catalog, root)
    changes = [
        {"identifier": identifier(name), "requirements": [], "updates": [set_properties(a="1")]}
        for name in ("t", "u")
    ]
    assert catalog.send("POST", "v1/transactions/commit", {"table-changes": changes}).status == 204
    assert catalog.load("u")["metadata"]["properties"]["a"] == "1"
    assert unloaded(catalog) == 1


def test_views_are_loaded_on_first_use(catalog: Client, root: Path) -> None:
    metadata = view_metadata(root / "db" / "v")
    where = write(root / "db" / "v", metadata)
    run(catalog, Entries(SourceEntry(("db",), "v", VIEW, where)), lazy=True)
    assert catalog.names("db", kind="views") == ["v"]
    answer = catalog.ok("GET", view("v"))
    assert (answer["metadata"], answer["metadata-location"]) == (metadata, where)


def test_a_table_that_is_not_loaded_yet_can_be_renamed_and_is_loaded_under_its_new_name(
    catalog: Client, root: Path
) -> None:
    where = table_in(root, "db", "t")
    lazily(catalog, root)
    assert catalog.send("POST", "v1/tables/rename", rename("t", "new")).status == 204
    assert unloaded(catalog) == 1
    assert catalog.load("new")["metadata-location"] == where


@pytest.mark.parametrize("text", ["", "{", '{"format-version": 2}', None])
def test_a_broken_file_is_named_and_the_table_stays_listed_and_can_be_dropped(
    catalog: Client, root: Path, text: str | None
) -> None:
    where = table_in(root, "db", "t")
    lazily(catalog, root)
    file = Path(where.removeprefix("file://"))
    file.unlink() if text is None else file.write_text(text)
    for answer in (
        catalog.send("GET", table("t")),
        catalog.commit("t", set_properties(a="1")),
        catalog.send("DELETE", table("t"), query={"purgeRequested": "true"}),
    ):
        assert answer.status == 400
        assert "db.t" in answer.error["message"]
        assert where in answer.error["message"]
    assert catalog.names("db") == ["t"]
    assert catalog.send("DELETE", table("t")).status == 204
    assert catalog.names("db") == []
    # Its location is free again.
    table_in(root, "db", "t")
    assert statuses(lazily(catalog, root)) == {"db.t": "registered"}


def test_the_metadata_of_a_view_under_the_name_of_a_table_is_reported(catalog: Client, root: Path) -> None:
    write(root / "db" / "v", view_metadata(root / "db" / "v"))
    lazily(catalog, root)
    answer = catalog.send("GET", table("v"))
    assert (answer.status, "describes a view" in answer.error["message"]) == (400, True)


def test_a_purge_loads_the_table_first_and_deletes_its_files(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t", snapshots=0)
    lazily(catalog, root)
    assert catalog.send("DELETE", table("t"), query={"purgeRequested": "true"}).status == 204
    assert not Path(where.removeprefix("file://")).exists()


def test_a_table_owns_its_known_locations_before_it_is_loaded(catalog: Client, root: Path) -> None:
    table_in(root, "db", "t")
    lazily(catalog, root)
    inside = catalog.send(
        "POST", "v1/namespaces/db/tables", {"name": "x", "schema": {"type": "struct", "fields": []},
                                             "location": f"file://{root}/db/t/inner"}
    )  # fmt: skip
    assert inside.kind == (403, "ForbiddenException")
    inner = table_in(root, "db", "t", "deeper", number=2)
    rows = run(catalog, Entries(SourceEntry(("db",), "deeper", TABLE, inner)), lazy=True)
    assert statuses(rows) == {"db.deeper": "conflict"}


def test_metadata_files_of_several_tables_in_one_folder_own_no_more_than_themselves(
    catalog: Client, root: Path
) -> None:
    listed = []
    for number in (1, 2):
        file = root / "all" / f"0000{number}-x.metadata.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(table_metadata(root / f"t{number}", number=number)))
        listed.append(SourceEntry(("db",), f"t{number}", TABLE, f"file://{file}"))
    assert [row.status for row in run(catalog, Entries(*listed), lazy=True)] == ["registered"] * 2
    assert catalog.load("t2")["metadata"]["location"] == f"file://{root}/t2"


def test_locations_are_judged_when_the_metadata_is_known(catalog: Client, root: Path) -> None:
    honest = table_in(root, "taken", number=2)
    liar = write(root / "elsewhere", table_metadata(root / "taken"))
    source = Entries(SourceEntry(("db",), "honest", TABLE, honest), SourceEntry(("db",), "liar", TABLE, liar))
    assert [row.status for row in run(catalog, source, lazy=True)] == ["registered"] * 2
    answer = catalog.send("GET", table("liar"))
    assert answer.kind == (403, "ForbiddenException")
    assert "overlaps" in answer.error["message"]
    assert "liar" in catalog.names("db")


def test_first_uses_at_once_load_it_once(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t", snapshots=20)
    lazily(catalog, root)
    answers = at_once([lambda: catalog.load()["metadata-location"] for _ in range(8)])
    assert set(answers) == {where}
    assert actions(catalog).count("load-imported") == 1


def test_first_uses_in_two_processes_worth_of_caches_load_it_once(
    opened: Any, tmp_path: Path, root: Path
) -> None:
    where = table_in(root, "db", "t", snapshots=20)
    uri = f"sqlite://{tmp_path / 'store.db'}"
    # Different options make connections of their own, with committers that know nothing of each other.
    clients = [opened(uri, tmp_path / "w", **{"store.timeout": f"{n}s"}) for n in (20, 21, 22)]
    clients[0].namespace("db")
    lazily(clients[0], root)
    answers = at_once([lambda c=c: c.load()["metadata-location"] for c in clients for _ in range(3)])  # type: ignore[misc]
    assert set(answers) == {where}
    assert actions(clients[0]).count("load-imported") == 1


def test_everything_is_loaded_by_one_job(catalog: Client, root: Path) -> None:
    for number in range(12):
        table_in(root, "db", f"t{number:02d}", number=number, snapshots=3)
    write(root / "db" / "t05", "{")
    lazily(catalog, root)
    catalog.load("t03")
    rows = load_all(catalog, parallelism=3)
    assert statuses(rows) == {f"db.t{n:02d}": "failed" if n == 5 else "loaded" for n in range(12) if n != 3}
    assert unloaded(catalog) == 1
    assert len(catalog.load("t07")["metadata"]["snapshots"]) == 3
    assert set(actions(catalog)[-11:]) == {"load-imported"}
    table_in(root, "db", "t05", number=5)
    assert statuses(load_all(catalog)) == {"db.t05": "loaded"}
    assert load_all(catalog) == []


def test_only_the_requested_tables_are_loaded(catalog: Client, root: Path) -> None:
    for number, name in enumerate(("a", "b")):
        table_in(root, name, "t", number=number)
    lazily(catalog, root)
    assert statuses(load_all(catalog, namespaces=["b"], dry_run=True)) == {"b.t": "would be loaded"}
    assert statuses(load_all(catalog, namespaces=["b"])) == {"b.t": "loaded"}
    assert unloaded(catalog) == 1


def test_drops_and_renames_during_a_load_of_all_tables_stay_in_force(
    catalog: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate("abc"):
        table_in(root, "db", name, number=number)
    lazily(catalog, root)
    listed = UnloadedContents.entries

    def entries(self: UnloadedContents) -> Iterator[Any]:
        found = list(listed(self))
        assert catalog.send("DELETE", table("b")).status == 204
        assert catalog.send("POST", "v1/tables/rename", rename("c", "new")).status == 204
        yield from found

    monkeypatch.setattr(UnloadedContents, "entries", entries)
    rows = load_all(catalog, overwrite=True)
    assert statuses(rows) == {"db.a": "loaded", "db.b": "conflict", "db.c": "conflict"}
    assert rows[1].message == "it was renamed or dropped during the import"
    assert catalog.names("db") == ["a", "new"]


def test_a_metadata_file_that_is_listed_twice_is_imported_once(catalog: Client, root: Path) -> None:
    entry = SourceEntry(("db",), "t", TABLE, table_in(root, "db", "t"))
    assert [row.status for row in run(catalog, Entries(entry, entry), lazy=True)] == ["registered", "exists"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"location":' + "[" * 100_000, "nested too deeply"),
        (json.dumps(table_metadata("a/../b")), "not an absolute path"),
    ],
)
def test_a_hostile_file_is_named(catalog: Client, root: Path, text: str, said: str) -> None:
    where = table_in(root, "db", "t")
    lazily(catalog, root)
    Path(where.removeprefix("file://")).write_text(text)
    answer = catalog.send("GET", table("t"))
    assert answer.status == 400
    assert where in answer.error["message"]
    assert said in answer.error["message"]


def test_the_same_import_without_lazy_loads_what_was_registered(catalog: Client, root: Path) -> None:
    table_in(root, "db", "t")
    lazily(catalog, root)
    assert statuses(lazily(catalog, root)) == {"db.t": "exists"}
    assert statuses(run(catalog, DirectoryTree(str(root), {}))) == {"db.t": "loaded"}
    assert statuses(run(catalog, DirectoryTree(str(root), {}))) == {"db.t": "exists"}


def test_a_newer_file_of_the_source_replaces_one_that_was_never_read(catalog: Client, root: Path) -> None:
    table_in(root, "db", "t")
    lazily(catalog, root)
    newer = write(root / "db" / "t", table_metadata(root / "db" / "t", snapshots=2), "00002-b.metadata.json")
    assert statuses(lazily(catalog, root)) == {"db.t": "conflict"}
    rows = run(catalog, DirectoryTree(str(root), {}), overwrite=True)
    assert statuses(rows) == {"db.t": "replaced"}
    assert catalog.load()["metadata-location"] == newer


def test_registering_over_one_that_is_not_loaded_needs_no_old_file(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t")
    lazily(catalog, root)
    Path(where.removeprefix("file://")).unlink()
    newer = write(root / "db" / "t", table_metadata(root / "db" / "t"), "00002-b.metadata.json")
    body = {"name": "t", "metadata-location": newer, "overwrite": True}
    assert catalog.ok("POST", "v1/namespaces/db/register", body)["metadata-location"] == newer
