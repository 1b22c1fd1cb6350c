"""Properties of a catalog apply to all sessions. A session can only be stricter about deletions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polaris_spark import objects
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.catalog.catalogs.catalogs import read_catalog
from polaris_spark.catalog.catalogs.property_changes import (
    CopyRow,
    SetProperties,
    complete_copy,
    set_properties,
)
from polaris_spark.catalog.catalogs.references import CATALOGS
from polaris_spark.catalog.entities.properties import PARSERS
from polaris_spark.catalog.rows import PROPERTIES, ROW, CatalogRow
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import entries
from polaris_spark.commits.state import State
from polaris_spark.errors import CorruptionError, InputError, NewerFormatError, NotFoundError
from polaris_spark.jobs.registry import call
from polaris_spark.store.references import new_version
from tests.rest.client import SCHEMA, Client, files_below, table, tables
from tests.rest.conftest import Open
from tests.rest.icebergs import ROWS, open_table

WHO = Operation(b"", "ann")


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    """A store that several sessions can open."""
    return f"sqlite://{tmp_path / 'store.db'}"


def purge(client: Client, name: str = "t") -> int:
    """Send a request to drop a table and its files, and return the status."""
    return client.send("DELETE", table(name), query={"purgeRequested": "true"}).status


def filled(client: Client, name: str = "t") -> None:
    """Create a table with a data file."""
    client.create(name)
    open_table(client, name).append(ROWS)


def set_row_only(client: Client, **updates: str) -> None:
    """Change only the catalog's row, like a process that dies before a branch has a copy."""
    catalog = client.session.catalog
    change = SetProperties(catalog.context, WHO, catalog.row, _dotted(updates), ())
    catalog.references.commit(CATALOGS, change)


def _dotted(updates: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): text for name, text in updates.items()}


def branch(client: Client, name: str) -> str:
    """Create a branch of the catalog from its head, and return the name of its reference."""
    catalog = client.session.catalog
    reference = catalog.reference.removesuffix("main") + name
    catalog.references.create(reference, WHO, source=catalog.head())
    return reference


def actions(client: Client) -> list[tuple[str, dict[str, str]]]:
    """Return the actions and summaries in the log of the branch, newest first."""
    head = client.session.catalog.head()
    return [(entry.action, entry.summary) for _, _, _, entry in entries(head.store, head.head)]


# Binding


def test_a_session_that_does_not_say_so_keeps_the_files_of_a_catalog_created_without_garbage_collection(
    opened: Open, shared_store: str, warehouse: Path
) -> None:
    first = opened(shared_store, warehouse, **{"gc.enabled": "false"})
    first.namespace("db")
    filled(first)
    before = files_below(warehouse)
    second = opened(shared_store, warehouse)
    assert purge(second) == 400
    assert files_below(warehouse) == before


def test_a_property_binds_a_session_that_was_open_before(
    opened: Open, shared_store: str, warehouse: Path
) -> None:
    first, second = opened(shared_store, warehouse), opened(shared_store, warehouse)
    first.namespace("db")
    filled(first)
    second.load()
    first.session.set_catalog_properties({"gc.enabled": "false"})
    assert purge(second) == 400
    first.session.set_catalog_properties(removals=["gc.enabled"])
    assert purge(second) == 204


@pytest.mark.parametrize(("stored", "given"), [("false", "true"), ("true", "false")])
def test_a_session_can_only_forbid_deletion(
    opened: Open, sqlite: str, warehouse: Path, stored: str, given: str
) -> None:
    opened(sqlite, warehouse, **{"gc.enabled": stored}).namespace("db")
    client = opened(sqlite, None, **{"gc.enabled": given})
    filled(client)
    assert purge(client) == 400


def test_a_session_overrides_properties_that_delete_nothing(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    opened(sqlite, warehouse, metadata_files="never").namespace("db")
    bound, own = opened(sqlite, None), opened(sqlite, None, metadata_files="every-commit")
    bound.create("bound")
    assert files_below(warehouse) == set()
    own.create("own")
    assert len(files_below(warehouse)) == 1
    own.session.set_catalog_properties({"metadata-files": "every-commit"})
    bound.create("bound_2")
    assert len(files_below(warehouse)) == 2


def test_a_session_inherits_settings_of_merges_and_reports_from_the_catalog(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    first = opened(sqlite, warehouse)
    client = opened(sqlite, None)
    updates = {"polaris.append-rebase": "true", "polaris.schema-merge": "TRUE ", "metrics-reports": "7"}
    assert (
        first.session.set_catalog_properties(updates).items()
        >= {
            "polaris.append-rebase": "true",
            "polaris.schema-merge": "TRUE",
            "metrics-reports": "7",
        }.items()
    )
    settings = client.session.catalog.effective_properties()
    assert (settings.append_rebase, settings.schema_merge, settings.metrics_reports) == (True, True, 7)
    own = opened(
        sqlite, None, metrics_reports=0, **{"polaris.schema-merge": "false"}
    ).session.catalog.effective_properties()
    assert (own.append_rebase, own.schema_merge, own.metrics_reports) == (True, False, 0)


def test_reports_are_asked_for_as_the_catalog_says(opened: Open, sqlite: str, warehouse: Path) -> None:
    client = opened(sqlite, warehouse)
    reporting = "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics"
    assert reporting in client.ok("GET", "v1/config")["endpoints"]
    opened(sqlite, None).session.set_catalog_properties({"metrics-reports": "0"})
    assert reporting not in client.ok("GET", "v1/config")["endpoints"]


@pytest.mark.parametrize("stage", [False, True])
def test_new_tables_get_the_defaults_and_overrides_of_the_catalog(
    opened: Open, sqlite: str, warehouse: Path, stage: bool
) -> None:
    first = opened(sqlite, warehouse, **{"table-default.color": "red", "table-default.size": "1"})
    first.namespace("db")
    first.session.set_catalog_properties({"table-override.owner": "us"})
    client = opened(sqlite, None)
    made = client.create("t", properties={"size": "2", "owner": "me"}, stage_create=stage)
    assert made["metadata"]["properties"].items() >= {"color": "red", "size": "2", "owner": "us"}.items()
    own = opened(sqlite, None, **{"table-default.color": "blue"})
    assert own.create("u", stage_create=stage)["metadata"]["properties"]["color"] == "blue"


def test_a_table_created_by_a_commit_gets_the_defaults_and_overrides_of_the_catalog(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    client = opened(sqlite, warehouse, **{"table-default.color": "red", "table-default.size": "1"})
    client.namespace("db")
    client.session.set_catalog_properties({"table-override.owner": "us"})
    location = client.create("t", stage_create=True)["metadata"]["location"]
    updates = [
        {"action": "add-schema", "schema": SCHEMA, "last-column-id": 2},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": location},
        {"action": "set-properties", "updates": {"owner": "me", "size": "2"}},
    ]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    made = client.ok("POST", table("t"), body)["metadata"]["properties"]
    assert made.items() >= {"color": "red", "size": "2", "owner": "us"}.items()


# Setting


def test_a_catalog_without_properties_of_its_own_has_no_copies(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    created = opened(sqlite, warehouse, **{"gc.enabled": "false"})
    again = opened(sqlite, None)
    for client in (created, again):
        assert client.session.catalog.head().commit.number == 0
    assert created.session.set_catalog_properties({"gc.enabled": "false"})["gc.enabled"] == "false"
    assert created.session.catalog.head().commit.number == 0


def test_the_log_has_the_principal_and_the_properties_that_were_set(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    client = opened(sqlite, warehouse, principal="ann", grace="4 h")
    client.session.set_catalog_properties({"gc.enabled": "false"}, removals=["grace", "history-retention"])
    summary = {"set gc.enabled": "false", "unset": "grace"}
    assert actions(client) == [("set-catalog-properties", summary)]
    references = client.session.catalog.references
    head = references.read(CATALOGS)
    newest = next(iter(entries(head.store, head.head)))[3]
    assert (newest.action, newest.principal, newest.summary) == ("set-catalog-properties", "ann", summary)
    assert head.store.get(newest.before, CatalogRow).properties["grace"] == "4 h"
    assert head.store.get(newest.after, CatalogRow).properties == client.session.catalog_properties()


@pytest.mark.parametrize(
    ("updates", "removals", "message"),
    [
        ({"gc.enabled": "perhaps"}, (), "'gc.enabled' is 'perhaps'; it must be true or false"),
        ({"grace": "3"}, (), "write a duration with its unit"),
        ({"metrics-reports": "-1"}, (), "a whole number from 0"),
        ({"history.expire.min-snapshots-to-keep": "few"}, (), "a whole number"),
        ({"history.expire.max-ref-age-ms": str(2**63)}, (), "a whole number"),
        ({"warehouse": "/tmp/w"}, (), "fixed when the catalog is created"),
        ({}, ("shared-locations",), "fixed when the catalog is created"),
        ({"gc_enabled": "false"}, (), "did you mean 'gc.enabled'"),
        ({"table-default.": "1"}, (), "cannot have the property 'table-default.'"),
        ({"cache-bytes": "1 MB"}, (), "it can have: allowed-locations"),
        ({"grace": "3 h"}, ("grace",), "both set and removed: grace"),
        ({"table-default.format-version": "9"}, (), "it must be one of 1, 2, 3, 4"),
        ({"table-default.x": "env:HOME"}, (), "cannot be env:NAME"),
        ({"table-default.x": "v" * 5_000}, (), "the maximum is 4096"),
        ({f"table-default.{n}": "v" * 1_000 for n in range(70)}, (), "the maximum is 65536"),
        ({"gc.enabled": True}, (), "must be strings"),
        ({"grace": None}, (), "must be strings"),
        ({"table-default.\ud800": "1"}, (), "not valid Unicode"),
        ({}, "gc.enabled", "as a list"),
        ({}, 7, "as a list"),
        ({}, {"grace": 1}, "as a list"),
        ({}, [None], "must be a string"),
        ({}, [["grace"]], "must be a string"),
        ("gc.enabled", (), "as a dictionary"),
        ([("gc.enabled", "true")], (), "as a dictionary"),
        ({"grace": "\uff11 d"}, (), "grace"),
    ],
)
def test_what_cannot_be_set_is_refused_and_changes_nothing(
    opened: Open,
    sqlite: str,
    warehouse: Path,
    updates: dict[str, Any],
    removals: Any,
    message: str,
) -> None:
    client = opened(sqlite, warehouse)
    with pytest.raises(InputError, match=message):
        client.session.set_catalog_properties(updates, removals=removals)
    assert set(client.session.catalog_properties()) == {"warehouse"}


def test_a_catalog_is_not_created_with_a_property_that_cannot_be_used(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    with pytest.raises(InputError, match=r"gc\.enabled"):
        opened(sqlite, warehouse, **{"gc.enabled": "perhaps"})
    assert opened(sqlite, warehouse).session.catalog_properties() == {"warehouse": f"file://{warehouse}"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gc.enabled", "flase"),
        ("history.expire.max-snapshot-age-ms", "5 d"),
        ("table-override.format-version", "9"),
    ],
)
def test_a_session_does_not_open_a_catalog_with_a_property_that_cannot_be_used(
    opened: Open, sqlite: str, warehouse: Path, name: str, text: str
) -> None:
    opened(sqlite, warehouse)
    with pytest.raises(InputError, match=name):
        opened(sqlite, warehouse, **{name: text})


def test_blanks_around_a_value_of_a_session_mean_nothing(opened: Open, sqlite: str, warehouse: Path) -> None:
    opened(sqlite, warehouse).namespace("db")
    client = opened(sqlite, None, **{"gc.enabled": " true "})
    filled(client)
    assert purge(client) == 204


def test_a_stored_property_is_not_read_from_the_environment_when_a_catalog_is_created(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    with pytest.raises(InputError, match="cannot be env:NAME"):
        opened(sqlite, warehouse, **{"table-default.x": "env:HOME"})


def test_a_branch_that_is_not_bound_is_named(
    opened: Open, sqlite: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = opened(sqlite, warehouse)

    def fail(self: CopyRow, view: State) -> Any:
        raise InputError("no")

    monkeypatch.setattr(CopyRow, "prepare", fail)
    with pytest.raises(
        InputError, match="are set, but do not apply to branch 'main' yet: no; set them again"
    ):
        client.session.set_catalog_properties({"gc.enabled": "false"})
    assert client.session.catalog_properties()["gc.enabled"] == "false"
    with pytest.raises(
        InputError, match="is now named 'b', but its properties do not apply to branch 'main' yet"
    ):
        client.session.catalogs.rename(client.session.catalog.name, "b")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table-default.commit.retry.num-retries", "few"),
        ("table-override.commit.retry.num-retries", "-1"),
        ("table-default.write.metadata.metrics.column.gone", "full"),
        ("table-default.encryption.key-id", "k"),
        ("table-override.write.metadata.compression-codec", "brotli"),
    ],
)
def test_a_refused_table_names_the_property_of_the_catalog_that_it_was_refused_for(
    opened: Open, sqlite: str, warehouse: Path, name: str, text: str
) -> None:
    client = opened(sqlite, warehouse)
    client.namespace("db")
    client.session.set_catalog_properties({name: text})
    answer = client.send("POST", tables("db"), {"name": "t", "schema": SCHEMA})
    assert answer.status == 400
    assert answer.error["message"].endswith(f"the table gets it from the catalog's property {name!r}")


def test_a_refused_property_of_the_request_is_not_put_down_to_the_catalog(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    client = opened(sqlite, warehouse)
    client.namespace("db")
    client.session.set_catalog_properties({"table-default.commit.retry.num-retries": "3"})
    asked = {"name": "t", "schema": SCHEMA, "properties": {"commit.retry.num-retries": "few"}}
    assert "catalog's" not in client.send("POST", tables("db"), asked).error["message"]


def test_a_branch_that_cannot_be_read_is_named_with_its_repair_and_the_others_are_bound(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    client = opened(sqlite, warehouse)
    references = client.session.catalog.references
    damaged, other = branch(client, "damaged"), branch(client, "other")
    registered = references.lookup(damaged)
    assert registered is not None
    backend, realm, row_name = references.store.backend, references.store.realm, registered.row_name
    row = backend.read_reference(realm, row_name)
    assert row is not None
    garbage = ReferenceRow(new_version(), b"\xff garbage")
    backend.swap_reference(realm, row_name, row.version, garbage)
    updates = {"gc.enabled": "false"}
    with pytest.raises(
        CorruptionError,
        match=r"are set, but do not apply to branch 'damaged' yet: .* repair the branch \(run polaris-spark fsck",
    ):
        client.session.set_catalog_properties(updates)
    assert client.session.catalog_properties()["gc.enabled"] == "false"
    for name in (client.session.catalog.reference, other):
        assert references.read(name).index(PROPERTIES).get(ROW) is not None
    backend.swap_reference(realm, row_name, garbage.version, row)
    client.session.set_catalog_properties(updates)
    assert references.read(damaged).index(PROPERTIES).get(ROW) is not None


def test_a_row_of_a_newer_release_can_be_read_and_not_changed(
    opened: Open, sqlite: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = objects._types["catalog"]._replace(revision=objects.revision_of(CatalogRow) + 1)
    monkeypatch.setitem(objects._types, "catalog", newer)
    monkeypatch.setitem(objects._by_class, CatalogRow, newer)
    first = opened(sqlite, warehouse)
    first.namespace("db")
    filled(first)
    set_row_only(first, gc__enabled="false")
    monkeypatch.undo()
    older = opened(sqlite, None)
    assert purge(older) == 400
    assert older.session.catalog.head().index(PROPERTIES).get(ROW) is None
    with pytest.raises(NewerFormatError, match="it can be read but not changed"):
        older.session.set_catalog_properties({"gc.enabled": "true"})
    assert older.session.catalog_properties()["gc.enabled"] == "false"


# Branches that come back


def undropped_while_open(opened: Open, sqlite: str, warehouse: Path) -> tuple[Client, Client]:
    """A session of `main`, and a session of a branch with a table. The branch was dropped while the catalog forbade
    deletion, and restored, while its session was open."""
    client = opened(sqlite, warehouse)
    client.namespace("db")
    name = branch(client, "dev")
    dev = opened(sqlite, None, branch="dev")
    filled(dev)
    references = client.session.catalog.references
    references.drop(name, WHO)
    client.session.set_catalog_properties({"gc.enabled": "false"})
    references.undrop(name, WHO)
    return client, dev


def test_a_purge_on_an_undropped_branch_asks_the_present_properties(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    _, dev = undropped_while_open(opened, sqlite, warehouse)
    assert purge(dev) == 400


def test_expiry_on_an_undropped_branch_asks_the_present_properties(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    _, dev = undropped_while_open(opened, sqlite, warehouse)
    open_table(dev, "t").append(ROWS)
    before = files_below(warehouse)
    rows = call(dev.session, "expire", older_than="0 s", retain_last=1)
    assert [row[-1] for row in rows] == ["gc.enabled is false"]
    assert files_below(warehouse) == before


# Processes that die or are held up


def test_opening_completes_the_work_of_a_dead_process(
    opened: Open, shared_store: str, warehouse: Path
) -> None:
    first = opened(shared_store, warehouse)
    first.namespace("db")
    filled(first)
    set_row_only(first, gc__enabled="false")
    opened(shared_store, None)
    assert purge(first) == 400


def test_a_copy_is_logged_for_the_principal_that_set_the_properties(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    first = opened(sqlite, warehouse, principal="bob")
    set_row_only(first, gc__enabled="false")
    opened(sqlite, None, principal="zoe")
    head = first.session.catalog.head()
    assert [entry.principal for _, _, _, entry in entries(head.store, head.head)] == [WHO.principal]


def test_setting_again_completes_the_work_of_a_dead_process(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    first, second = opened(sqlite, warehouse), opened(sqlite, warehouse)
    first.namespace("db")
    filled(first)
    set_row_only(second, gc__enabled="false")
    second.session.set_catalog_properties({"gc.enabled": "false"})
    assert purge(first) == 400


def test_a_process_that_is_held_up_does_not_bring_old_properties_back(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    first, second = opened(sqlite, warehouse), opened(sqlite, warehouse)
    first.session.set_catalog_properties({"gc.enabled": "true"})
    catalog = first.session.catalog
    set_row_only(first, grace="1 d")

    class HeldUp(CopyRow):
        """A change of properties. Other processes set properties after it has read the row for the first time."""

        times = 0

        def prepare(self, view: State) -> object:
            found = super().prepare(view)
            if not self.times:
                second.session.set_catalog_properties({"gc.enabled": "false"})
                second.session.set_catalog_properties({"gc.enabled": "true"})
                second.session.set_catalog_properties({"gc.enabled": "false"})
            self.times += 1
            return found

    late = HeldUp(catalog.context, WHO, catalog.row, catalog.references)
    catalog.references.commit(catalog.reference, late)
    assert late.times == 2
    assert catalog.effective_properties().retention == {"gc.enabled": "false"}


def test_all_live_branches_are_bound_and_dropped_ones_when_they_are_opened(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    client = opened(sqlite, warehouse)
    names = [branch(client, name) for name in ("live", "dropped")]
    references = client.session.catalog.references
    references.drop(names[1], WHO)
    client.session.set_catalog_properties({"gc.enabled": "false"})
    live, dropped = (name for name in names)
    assert references.read(live).index(PROPERTIES).get(ROW) is not None
    references.undrop(dropped, WHO)
    assert references.read(dropped).index(PROPERTIES).get(ROW) is None
    back = opened(sqlite, None, branch="dropped")
    assert back.session.catalog.effective_properties().retention == {"gc.enabled": "false"}
    assert references.read(dropped).index(PROPERTIES).get(ROW) is not None


def test_a_branch_made_from_an_old_commit_gets_the_present_properties_when_it_is_opened(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    client = opened(sqlite, warehouse)
    client.session.set_catalog_properties({"gc.enabled": "true"})
    catalog, old = client.session.catalog, client.session.catalog.head()
    client.session.set_catalog_properties({"gc.enabled": "false"})
    reference = catalog.reference.removesuffix("main") + "old"
    catalog.references.create(reference, WHO, source=old)
    opened(sqlite, None, branch="old")
    head = catalog.references.read(reference)
    assert (
        head.store.get(head.index(PROPERTIES).get(ROW).pointer, CatalogRow).properties["gc.enabled"]
        == "false"
    )


def test_a_session_goes_on_where_its_branch_was_made_anew_without_a_copy(
    opened: Open, sqlite: str, warehouse: Path
) -> None:
    first = opened(sqlite, warehouse)
    first.namespace("db")
    old = first.session.catalog.head()
    first.session.set_catalog_properties({"gc.enabled": "false"})
    reference = branch(first, "dev")
    second = opened(sqlite, None, branch="dev")
    references = first.session.catalog.references
    references.end([references.drop(reference, WHO)], WHO)
    references.create(reference, WHO, source=old)
    filled(second)
    assert purge(second) == 400


def test_a_session_whose_branch_cannot_get_a_copy_uses_the_row(
    opened: Open, sqlite: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(sqlite, warehouse)
    first.namespace("db")
    filled(first)
    set_row_only(first, gc__enabled="false")

    def fail(self: CopyRow, view: State) -> Any:
        raise InputError("no")

    monkeypatch.setattr(CopyRow, "prepare", fail)
    second = opened(sqlite, None)
    monkeypatch.undo()
    assert purge(second) == 400
    opened(sqlite, None).session.set_catalog_properties(removals=["gc.enabled"])
    assert purge(second) == 204


def test_a_catalog_of_another_identity_is_not_changed(opened: Open, sqlite: str, warehouse: Path) -> None:
    client = opened(sqlite, warehouse)
    catalog = client.session.catalog
    other = CatalogRow(catalog.row.entity_id + 1, catalog.name, 0, "ann")
    with pytest.raises(NotFoundError, match="no longer exists"):
        set_properties(catalog.references, catalog.context, WHO, other, {"gc.enabled": "false"}, ())
    head = catalog.head()
    assert complete_copy(catalog.references, catalog.context, WHO, other, head, catalog.reference) == other
    found = read_catalog(catalog.references, catalog.name)
    assert found is not None
    assert found.row == catalog.row


def test_each_property_that_can_be_set_is_refused_with_its_name_if_it_is_wrong() -> None:
    for name, parse in PARSERS.items():
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            parse(name, "?")
