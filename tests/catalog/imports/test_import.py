"""Import of tables and views with all their metadata."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.catalog.engine import LocalEngine, MapFunction, Reach
from polaris_spark.catalog.imports import importer
from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.catalog.imports.importer import ImportOptions
from polaris_spark.catalog.imports.jobs import TASK, import_source
from polaris_spark.catalog.imports.sources import ListedNamespace, SourceEntry
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.errors import InputError, TaskRunningError, TryAgainError
from polaris_spark.jobs.registry import call
from polaris_spark.system.tasks import Tasks
from tests.catalog.imports.support import (
    Entries,
    run,
    statuses,
    table_in,
    table_metadata,
    view_metadata,
    write,
)
from tests.catalog.metadata.test_rendering import imported
from tests.rest.client import Client, path, table, view


def test_tables_are_imported_with_their_namespaces(catalog: Client, root: Path) -> None:
    where = table_in(root, "a", "b", "t")
    rows = run(catalog, DirectoryTree(str(root), {}))
    assert rows == [("a.b.t", "table", where, "imported", None)]
    loaded = catalog.load("t", ("a", "b"))
    assert loaded["metadata-location"] == where
    assert loaded["metadata"] == json.loads((root / "a/b/t/metadata/00001-a.metadata.json").read_text())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_is_imported_is_exported_field_by_field(catalog: Client, root: Path, version: int) -> None:
    metadata = {**imported(version), "location": f"file://{root}/db/t"}
    write(root / "db" / "t", metadata)
    run(catalog, DirectoryTree(str(root), {}))
    assert catalog.load()["metadata"] == metadata


def test_a_history_of_a_thousand_snapshots_is_exported_unchanged(catalog: Client, root: Path) -> None:
    files = [{"timestamp-ms": n, "metadata-file": f"m{n}"} for n in range(1_000)]
    extra = {
        "properties": {"schema.name-mapping.default": '[{"field-id":1,"names":["id"]}]'},
        "metadata-log": files,
    }
    metadata = table_metadata(root / "db" / "t", snapshots=1_000, later=[1.50, 10**30, {"x": None}], **extra)
    for number, snapshot in enumerate(metadata["snapshots"]):
        snapshot["odd"] = number * 10**20
    text = json.dumps(metadata).replace("1.5,", "1.50,")
    write(root / "db" / "t", text)
    assert [row.status for row in run(catalog, DirectoryTree(str(root), {}))] == ["imported"]
    _, _, body = catalog.session.request("GET", table("t"))
    assert json.loads(body)["metadata"] == metadata
    assert '"later":[1.50,' in body


def test_an_imported_table_continues_its_history(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t", snapshots=3)
    run(catalog, DirectoryTree(str(root), {}))
    changed = catalog.set("t", added="1")
    assert changed["metadata-location"].rsplit("/", 1)[-1].startswith("00002-")
    assert [one["metadata-file"] for one in changed["metadata"]["metadata-log"]] == [where]
    assert len(changed["metadata"]["snapshots"]) == 3


def test_views_are_imported(catalog: Client, root: Path) -> None:
    metadata = view_metadata(root / "db" / "v")
    where = write(root / "db" / "v", gzip.compress(json.dumps(metadata).encode()), "00001-a.gz.metadata.json")
    rows = run(catalog, DirectoryTree(str(root), {}))
    assert rows == [("db.v", "view", where, "imported", None)]
    assert catalog.ok("GET", view("v"))["metadata"] == metadata


def test_importing_again_changes_nothing(catalog: Client, root: Path) -> None:
    for name in ("t", "u"):
        table_in(root, "db", name)
    run(catalog, DirectoryTree(str(root), {}))
    before = catalog.session.catalog.head().head.commit
    rows = run(catalog, DirectoryTree(str(root), {}))
    assert statuses(rows) == {"db.t": "exists", "db.u": "exists"}
    assert catalog.session.catalog.head().head.commit == before


def test_a_name_that_stands_for_something_else_is_a_conflict(catalog: Client, root: Path) -> None:
    kept = catalog.create("t")["metadata-location"]
    table_in(root, "db", "t")
    table_in(root, "db", "u")
    rows = run(catalog, DirectoryTree(str(root), {}))
    assert statuses(rows) == {"db.t": "conflict", "db.u": "imported"}
    assert kept in (rows[0].message or "")
    assert catalog.load()["metadata-location"] == kept


def test_with_overwrite_a_table_is_replaced_and_keeps_its_identity(catalog: Client, root: Path) -> None:
    catalog.create("t")
    before = entity(catalog, "t")
    where = table_in(root, "db", "t")
    assert statuses(run(catalog, DirectoryTree(str(root), {}), overwrite=True)) == {"db.t": "replaced"}
    assert catalog.load()["metadata-location"] == where
    assert entity(catalog, "t") == before
    # What the old table owned is free again.
    catalog.create("other")


def entity(client: Client, name: str) -> int:
    from polaris_spark.catalog.entities.entities import TableName, require

    return require(client.session.catalog.view(), TableName(("db",), name), TABLE).entity_id


def test_a_view_is_not_replaced_by_a_table(catalog: Client, root: Path) -> None:
    write(root / "db" / "t", view_metadata(root / "db" / "t"))
    run(catalog, DirectoryTree(str(root), {}))
    where = table_in(root, "other", "t")
    source = Entries(SourceEntry(("db",), "t", TABLE, where))
    assert statuses(run(catalog, source, overwrite=True)) == {"db.t": "conflict"}


def test_tables_whose_locations_overlap_conflict(catalog: Client, root: Path) -> None:
    outer, inner = table_in(root, "db", "t"), table_in(root, "db", "t", "inner", number=2)
    source = Entries(SourceEntry(("db",), "t", TABLE, outer), SourceEntry(("db",), "inner", TABLE, inner))
    rows = run(catalog, source)
    assert statuses(rows) == {"db.t": "imported", "db.inner": "conflict"}
    assert "overlaps" in (rows[1].message or "")
    assert catalog.names("db") == ["t"]


def test_an_import_of_conflicts_only_creates_no_namespace(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t")
    run(catalog, Entries(SourceEntry(("db",), "t", TABLE, where)))
    before = catalog.session.catalog.head().head.commit
    again = Entries(
        ListedNamespace(("a",)), ListedNamespace(("b",), {"x": "y"}), SourceEntry(("a",), "t", TABLE, where)
    )
    assert statuses(run(catalog, again, into=("fresh",))) == {"fresh.a.t": "conflict"}
    assert catalog.session.catalog.head().head.commit == before


def test_one_table_under_two_names_conflicts_with_itself(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t")
    source = Entries(SourceEntry(("db",), "t", TABLE, where), SourceEntry(("db",), "u", TABLE, where))
    assert statuses(run(catalog, source)) == {"db.t": "imported", "db.u": "conflict"}


def test_copies_with_one_uuid_in_two_places_are_two_tables(catalog: Client, root: Path) -> None:
    table_in(root, "db", "t", number=5)
    table_in(root, "db", "u", number=5)
    assert statuses(run(catalog, DirectoryTree(str(root), {}))) == {"db.t": "imported", "db.u": "imported"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Cannot parse metadata"),
        ("[]", "Cannot parse metadata"),
        ("", "Cannot parse metadata"),
        ("{}", "format-version"),
        ('{"format-version": 9}', "unsupported version 9"),
        (b"\x1f\x8bnonsense", "not a complete gzip file"),
        (b"\xff\xfe", "Cannot parse metadata"),
        ("[" * 100_000, "metadata"),
    ],
)
def test_an_unreadable_file_is_reported_and_does_not_stop_the_job(
    catalog: Client, root: Path, text: str | bytes, message: str
) -> None:
    where = write(root / "db" / "bad", text)
    table_in(root, "db", "good")
    bad, good = run(catalog, DirectoryTree(str(root), {}))
    assert (bad.status, good.status) == ("failed", "imported")
    assert message in (bad.message or "")
    assert where in (bad.message or "")


def test_a_file_that_vanished_meanwhile_is_reported(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t")
    Path(where.removeprefix("file://")).unlink()
    (row,) = run(catalog, Entries(SourceEntry(("db",), "t", TABLE, where)))
    assert row.status == "failed"
    assert where in (row.message or "")


def test_a_table_that_is_called_a_view_is_refused(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t")
    (row,) = run(catalog, Entries(SourceEntry(("db",), "t", VIEW, where)))
    assert row.status == "failed"
    assert "describes a table" in (row.message or "")


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        (("db",), ""),
        (("db",), "a\x1fb"),
        (("",), "t"),
        ((), "t"),
        (("system",), "t"),
        (("db",), "x" * 9_000),
        (("db",), "\ud800"),
        (("db",), "a\nb"),
        (("a\nb",), "t"),
        (("db",), "é\u202e"),
        (("..",), "t"),
    ],
)
def test_names_that_no_client_could_use_are_reported(
    catalog: Client, root: Path, namespace: tuple[str, ...], name: str
) -> None:
    where, good = table_in(root, "x", "t"), table_in(root, "x", "u", number=2)
    source = Entries(SourceEntry(namespace, name, TABLE, where), SourceEntry(("db",), "good", TABLE, good))
    bad, other = run(catalog, source)
    assert (bad.status, other.status) == ("failed", "imported")
    assert bad.message


@pytest.mark.parametrize("lazy", [False, True], ids=["loaded", "lazy"])
def test_a_table_with_a_refused_name_leaves_nothing_in_the_catalog(
    catalog: Client, root: Path, *, lazy: bool
) -> None:
    where = table_in(root, "x", "t")
    (row,) = run(catalog, Entries(SourceEntry(("db",), "a\nb", TABLE, where)), lazy=lazy)
    assert row.status == "failed"
    assert call(catalog.session, "fsck") == []
    catalog.ok("POST", "v1/namespaces/db/register", {"name": "ab", "metadata-location": where})
    assert catalog.names("db") == ["ab"]


def test_a_table_with_a_location_too_long_for_the_index_leaves_nothing_in_the_catalog(
    catalog: Client, root: Path
) -> None:
    where = table_in(root, "x", "t", properties={"write.data.path": f"s3://b/{'x' * 4_085}"})
    (row,) = run(catalog, Entries(SourceEntry(("db",), "t", TABLE, where)))
    assert row.status == "failed"
    assert call(catalog.session, "fsck") == []


@pytest.mark.parametrize("name", ["a.b", "a b", "...", "%2F", "a/b", "é\u200f", "`", "'; DROP TABLE t --"])
def test_odd_names_are_kept(catalog: Client, root: Path, name: str) -> None:
    where = table_in(root, "x", "t")
    assert [row.status for row in run(catalog, Entries(SourceEntry((name,), name, TABLE, where)))] == [
        "imported"
    ]
    assert catalog.load(name, (name,))["metadata-location"] == where


def test_everything_can_be_put_below_a_namespace(catalog: Client, root: Path) -> None:
    table_in(root, "t")
    table_in(root, "a", "u", number=2)
    rows = run(catalog, DirectoryTree(str(root), {}), into=("old", "lake"))
    assert statuses(rows) == {"old.lake.t": "imported", "old.lake.a.u": "imported"}
    assert catalog.names("old", "lake", "a") == ["u"]


def test_namespaces_bring_their_properties_where_they_are_new(catalog: Client, root: Path) -> None:
    source = Entries(ListedNamespace(("db",), {"x": "source"}), ListedNamespace(("a", "b"), {"y": "1"}))
    assert run(catalog, source) == []
    assert catalog.stored_properties("db") == {}
    assert catalog.stored_properties("a", "b") == {"y": "1"}
    assert catalog.stored_properties("a") == {}


def test_namespaces_that_were_listed_long_before_their_tables_bring_their_properties(
    catalog: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "WAVE", 2)
    listed = [
        ListedNamespace(("new",), {"x": "1"}),
        ListedNamespace(("new", "inner"), {"y": "1"}),
        ListedNamespace(("other",), {}),
    ]
    where = table_in(root, "new", "inner", "t")
    rows = run(catalog, Entries(*listed, SourceEntry(("new", "inner"), "t", TABLE, where)), include=["new.*"])
    assert statuses(rows) == {"new.inner.t": "imported"}
    assert catalog.stored_properties("new") == {"x": "1"}
    assert catalog.stored_properties("new", "inner") == {"y": "1"}
    assert catalog.send("GET", path("other")).status == 404


def test_many_namespaces_without_tables_are_created_in_several_commits(
    catalog: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "WAVE", 2)
    before = catalog.session.catalog.head().head.number
    assert run(catalog, Entries(*(ListedNamespace((f"n{number}",)) for number in range(5)))) == []
    assert len(catalog.ok("GET", "v1/namespaces")["namespaces"]) == 6
    assert catalog.session.catalog.head().head.number == before + 3


def test_the_imported_names_are_selected_by_namespace_and_pattern(catalog: Client, root: Path) -> None:
    for number, where in enumerate(["a/x1", "a/b/x2", "ab/x3", "a/y"]):
        table_in(root, *where.split("/"), number=number)
    tree = DirectoryTree(str(root), {})
    assert set(statuses(run(catalog, tree, dry_run=True, namespaces=["a"]))) == {"a.x1", "a.b.x2", "a.y"}
    assert set(statuses(run(catalog, tree, dry_run=True, include=["*.x?"]))) == {"a.x1", "a.b.x2", "ab.x3"}
    rows = run(catalog, tree, namespaces=["a"], include=["a.x*", "a.b.*"])
    assert set(statuses(rows)) == {"a.x1", "a.b.x2"}


def test_a_dry_run_reports_the_changes_without_making_them(catalog: Client, root: Path) -> None:
    catalog.create("t")
    table_in(root, "db", "t")
    table_in(root, "new", "t", number=2)
    write(root / "db" / "bad", "{")
    before = catalog.session.catalog.head().head.commit
    rows = run(catalog, DirectoryTree(str(root), {}), dry_run=True)
    assert statuses(rows) == {"db.bad": "failed", "db.t": "conflict", "new.t": "would be imported"}
    rows = run(catalog, DirectoryTree(str(root), {}), dry_run=True, overwrite=True, lazy=True)
    assert statuses(rows)["db.t"] == "would be replaced"
    assert catalog.session.catalog.head().head.commit == before
    assert catalog.ok("GET", "v1/namespaces")["namespaces"] == [["db"]]


def test_an_interrupted_listing_is_reported_after_the_completed_rows(catalog: Client, root: Path) -> None:
    where = table_in(root, "db", "t")
    source = Entries(SourceEntry(("db",), "t", TABLE, where), ConnectionError("the line is cut"))
    rows = run(catalog, source)
    assert [row.status for row in rows] == ["imported", "failed"]
    message = rows[1].message or ""
    assert rows[1].table is None
    assert "failed after 1 entries" in message
    assert "the line is cut" in message
    assert catalog.names("db") == ["t"]


def test_a_source_that_cannot_be_listed_at_all_is_an_error(catalog: Client) -> None:
    with pytest.raises(InputError, match="nothing was imported: ConnectionError: no"):
        run(catalog, Entries(ConnectionError("no")))
    with pytest.raises(InputError, match="cannot be listed"):
        run(catalog, DirectoryTree("/no/such/place", {}))


def test_many_tables_take_few_commits_and_one_log_entry_each(catalog: Client, root: Path) -> None:
    for number in range(50):
        table_in(root, "db", f"t{number:02d}", number=number)
    before = catalog.session.catalog.head().head.number
    run(catalog, DirectoryTree(str(root), {}), commit_size=20)
    head = catalog.session.catalog.head()
    assert head.head.number - before == 3
    from polaris_spark.commits.rows import Entries as LogEntries

    entries = head.store.get(head.commit.entries, LogEntries).entries
    assert len(entries) == 10
    assert {(e.action, e.principal) for e in entries} == {("import-table", "importer")}


def test_waves_follow_each_other(catalog: Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "WAVE", 7)
    for number in range(30):
        table_in(root, "db", f"t{number:02d}", number=number)
    rows = run(catalog, DirectoryTree(str(root), {}))
    assert [row.status for row in rows] == ["imported"] * 30
    assert len(catalog.names("db")) == 30


@pytest.mark.parametrize(("cores", "threads"), [(1, 16), (4, 1)])
def test_executors_import_one_portion_per_core_at_a_time(
    catalog: Client, root: Path, cores: int, threads: int
) -> None:
    used: list[int] = []

    class Cores(LocalEngine):
        @property
        def parts(self) -> int:
            return cores

        def _results(self, function: MapFunction[Any, Any], items: Sequence[Any]) -> Iterator[Any]:
            used.append(function.threads)
            return super()._results(function, items)

    table_in(root, "db", "t")
    opened = catalog.session.catalog
    engine = Cores(Reach(opened.references.store, opened.files))
    options = ImportOptions(parallelism=16)
    import_source(opened, DirectoryTree(str(root), {}), principal="importer", options=options, engine=engine)
    assert used == [threads]


def test_a_table_that_needs_more_ids_than_were_handed_out_gets_them(catalog: Client, root: Path) -> None:
    table_in(root, "db", "large", snapshots=2_000)
    table_in(root, "db", "small", number=2)
    rows = run(catalog, DirectoryTree(str(root), {}))
    assert [row.status for row in rows] == ["imported", "imported"]
    assert len(catalog.load("large")["metadata"]["snapshots"]) == 2_000


def test_an_import_that_is_stopped_leaves_what_it_did_and_is_run_again(
    catalog: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "WAVE", 4)
    for number in range(10):
        table_in(root, "db", f"t{number}", number=number)
    calls = 0

    def check(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise TryAgainError("stop")

    here = catalog.session.catalog
    engine = LocalEngine(Reach(here.references.store, here.files), check)
    with pytest.raises(TryAgainError):
        import_source(
            here, DirectoryTree(str(root), {}), principal="p", options=ImportOptions(), engine=engine
        )
    assert len(catalog.names("db")) == 4
    again = run(catalog, DirectoryTree(str(root), {}))
    assert [row.status for row in again] == ["exists"] * 4 + ["imported"] * 6


def test_one_import_runs_at_a_time_in_a_catalog(catalog: Client, root: Path) -> None:
    here = catalog.session.catalog
    store = here.references.store
    tasks = Tasks(store.backend, here.context.clock)
    scope = f"{store.realm}/{here.row.entity_id:x}"
    with tasks.running(TASK, scope, holder="somebody else"):
        with pytest.raises(TaskRunningError, match="somebody else"):
            run(catalog, DirectoryTree(str(root), {}))
        assert run(catalog, DirectoryTree(str(root), {}), dry_run=True) == []
    run(catalog, DirectoryTree(str(root), {}))
    record = tasks.find(TASK, scope)
    assert record is not None
    assert (record.released, record.outcome) == (True, "done")


def test_rows_that_a_fence_overtook_are_written_again(
    catalog: Client, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    from polaris_spark.commits.rows import Head
    from polaris_spark.store.references import ReferenceStore

    table_in(root, "db", "t")
    here = catalog.session.catalog
    store = here.references.store
    assert isinstance(store.backend, MemoryBackend)
    references, runs = ReferenceStore(store.backend, store.realm), 0
    registered = here.references.lookup(here.reference)
    assert registered is not None

    class FenceAfter(LocalEngine):
        def _results(self, function: Any, items: Sequence[Any]) -> Iterator[Any]:
            nonlocal runs
            yield from super()._results(function, items)
            runs += 1
            if runs == 1:
                name = registered.row_name
                found = references.read(name, Head)
                assert found is not None
                fence = here.references.ids.next_id()
                references.put(
                    name, found.version, references.row(msgspec.structs.replace(found.value, fence=fence))
                )

    rows = import_source(
        here,
        DirectoryTree(str(root), {}),
        principal="p",
        options=ImportOptions(),
        engine=FenceAfter(Reach(store, here.files)),
    )
    assert [row.status for row in rows] == ["imported"]
    assert runs == 2
    assert catalog.load()["metadata"]["table-uuid"]
