"""Tables through pyiceberg's interface: names, creation, commits and their errors."""

from __future__ import annotations

import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchIdentifierError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import AssertCurrentSchemaId, SetPropertiesUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, StringType

from polaris_spark.commits.log import entries
from polaris_spark.errors import OutcomeUnknownError
from polaris_spark.pyiceberg import PolarisCatalog
from tests.pyiceberg_adapter.conftest import Open
from tests.pyiceberg_adapter.content import SCHEMA, content, rows, view_version

BY_ID = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "id_bucket"))


def test_a_table_is_created_as_asked(catalog: PolarisCatalog, tmp_path: Path) -> None:
    order = SortOrder(SortField(2, IdentityTransform()))
    table = catalog.create_table(
        "db.t", SCHEMA, f"file://{tmp_path}/elsewhere/", BY_ID, order, {"owner": "ann", "retries": 3}
    )
    assert table.location() == f"file://{tmp_path}/elsewhere"
    assert [field.name for field in table.spec().fields] == ["id_bucket"]
    assert [field.source_id for field in table.sort_order().fields] == [2]
    assert {key: table.properties[key] for key in ("owner", "retries")} == {"owner": "ann", "retries": "3"}
    assert catalog.load_table("db.t") == table
    assert catalog.list_tables("db") == [("db", "t")]


def test_a_table_can_be_created_with_a_pyarrow_schema(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", rows().schema)
    assert table.schema().column_names == ["id", "name"]


def test_the_default_location_of_a_table_is_in_the_warehouse(catalog: PolarisCatalog, tmp_path: Path) -> None:
    assert catalog.create_table("db.t", SCHEMA).location().startswith(f"file://{tmp_path}/warehouse/db/t")


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_every_format_version_can_be_created_and_loaded(catalog: PolarisCatalog, version: str) -> None:
    catalog.create_table("db.t", SCHEMA, properties={"format-version": version})
    assert catalog.load_table("db.t").format_version == int(version)


def test_a_table_exists_once(catalog: PolarisCatalog) -> None:
    first = catalog.create_table("db.t", SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("db.t", SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table_transaction("db.t", SCHEMA)
    assert catalog.create_table_if_not_exists("db.t", SCHEMA) == first


def test_a_missing_table_is_reported(catalog: PolarisCatalog) -> None:
    for ask in (catalog.load_table, catalog.drop_table, catalog.purge_table):
        for name in ("db.missing", "missing.t"):
            with pytest.raises(NoSuchTableError):
                ask(name)
    with pytest.raises(NoSuchTableError):
        catalog.rename_table("db.missing", "db.t")
    assert not catalog.table_exists("db.missing")
    assert not catalog.table_exists("missing.t")
    with pytest.raises(NoSuchIdentifierError):
        catalog.load_table("t")


def test_an_empty_name_is_reported(catalog: PolarisCatalog) -> None:
    for ask in (
        catalog.load_table,
        catalog.table_exists,
        catalog.drop_table,
        catalog.load_view,
        catalog.drop_view,
    ):
        with pytest.raises(NoSuchIdentifierError, match="empty"):
            ask("db.")
        with pytest.raises(NoSuchNamespaceError, match="empty"):
            ask(".t")
    with pytest.raises(NoSuchNamespaceError, match="empty"):
        catalog.namespace_exists("")


def test_a_table_is_renamed_across_namespaces(catalog: PolarisCatalog) -> None:
    catalog.create_namespace("other")
    table = catalog.create_table("db.t", SCHEMA)
    renamed = catalog.rename_table("db.t", ("other", "u"))
    assert renamed.name() == ("other", "u")
    assert renamed.metadata.table_uuid == table.metadata.table_uuid
    assert (catalog.table_exists("db.t"), catalog.table_exists("other.u")) == (False, True)


def test_a_table_is_not_renamed_over_another_or_into_nowhere(catalog: PolarisCatalog) -> None:
    catalog.create_table("db.t", SCHEMA)
    catalog.create_table("db.u", SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table("db.t", "db.u")
    with pytest.raises(NoSuchNamespaceError):
        catalog.rename_table("db.t", "missing.u")
    assert catalog.table_exists("db.t")


def test_a_dropped_table_leaves_its_files_and_can_be_registered(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "a")))
    catalog.drop_table("db.t")
    again = catalog.register_table("db.u", table.metadata_location)
    assert again.metadata.table_uuid == table.metadata.table_uuid
    assert content(again) == [(1, "a")]


def test_registering_does_not_replace_a_table_unless_asked_to(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "a")))
    catalog.drop_table("db.t")
    catalog.create_table("db.t", SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table("db.t", table.metadata_location)
    assert content(catalog.register_table("db.t", table.metadata_location, overwrite=True)) == [(1, "a")]
    with pytest.raises(NoSuchNamespaceError):
        catalog.register_table("missing.t", table.metadata_location)


def test_a_purge_deletes_the_files(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    table.append(rows((1, "a")))
    place = Path(unquote(urlsplit(table.location()).path))
    assert list(place.rglob("*.parquet"))
    catalog.purge_table("db.t")
    assert not catalog.table_exists("db.t")
    assert [file for file in place.rglob("*") if file.is_file()] == []


def test_a_transaction_is_one_commit(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    with table.transaction() as transaction:
        transaction.set_properties(a="1", b="2")
        with transaction.update_schema() as schema:
            schema.add_column("amount", IntegerType())
        with transaction.update_spec() as spec:
            spec.add_identity("name")
        transaction.append(
            rows((1, "a")).append_column("amount", [[5]]).cast(transaction.table_metadata.schema().as_arrow())
        )
    assert _log(catalog) == ["create-namespace", "create-table", "update-table"]
    loaded = catalog.load_table("db.t")
    assert loaded == table
    assert (loaded.properties["a"], loaded.schema().column_names) == ("1", ["id", "name", "amount"])
    assert [field.name for field in loaded.spec().fields] == ["name"]
    assert content(loaded) == [(1, "a", 5)]


def test_a_transaction_that_raises_changes_nothing(catalog: PolarisCatalog) -> None:
    def change(table: Table) -> None:
        with table.transaction() as transaction:
            transaction.set_properties(a="1")
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        change(catalog.create_table("db.t", SCHEMA))
    assert "a" not in catalog.load_table("db.t").properties


def test_a_staged_table_appears_with_its_commit(catalog: PolarisCatalog) -> None:
    with catalog.create_table_transaction("db.t", SCHEMA, partition_spec=BY_ID) as transaction:
        assert not catalog.table_exists("db.t")
        with transaction.update_snapshot().fast_append():
            pass
        transaction.set_properties(a="1")
    table = catalog.load_table("db.t")
    assert (table.properties["a"], [field.name for field in table.spec().fields]) == ("1", ["id_bucket"])
    assert table.current_snapshot() is not None


def test_a_staged_table_fails_if_another_came_first(catalog: PolarisCatalog) -> None:
    transaction = catalog.create_table_transaction("db.t", SCHEMA)
    catalog.create_table("db.t", SCHEMA)
    with pytest.raises(CommitFailedException):
        transaction.commit_transaction()


def test_a_commit_that_contradicts_another_fails(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    stale = catalog.load_table("db.t")
    with table.update_schema() as update:
        update.add_column("b", StringType())
    with pytest.raises(CommitFailedException), stale.update_schema() as update:
        update.add_column("b", IntegerType())
    stale.refresh()
    with stale.update_schema() as update:
        update.add_column("c", IntegerType())
    assert catalog.load_table("db.t").schema().column_names == ["id", "name", "b", "c"]


def test_updates_are_committed_under_their_requirements(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    update = (SetPropertiesUpdate(updates={"a": "1"}),)
    response = catalog.commit_table(table, (AssertCurrentSchemaId(current_schema_id=0),), update)
    assert response.metadata.properties["a"] == "1"
    assert response.metadata_location == catalog.load_table("db.t").metadata_location
    with pytest.raises(CommitFailedException, match="schema"):
        catalog.commit_table(table, (AssertCurrentSchemaId(current_schema_id=7),), update)


def test_a_commit_to_a_dropped_table_raises_no_such_table(catalog: PolarisCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    catalog.drop_table("db.t")
    with pytest.raises(NoSuchTableError), table.transaction() as transaction:
        transaction.set_properties(a="1")


def test_a_name_is_a_table_or_a_view(catalog: PolarisCatalog) -> None:
    catalog.create_view("db.v", SCHEMA, view_version())
    with pytest.raises(TableAlreadyExistsError, match="View"):
        catalog.create_table("db.v", SCHEMA)


def test_threads_commit_to_one_table(catalog: PolarisCatalog) -> None:
    catalog.create_table("db.t", SCHEMA)
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(5):
                with catalog.load_table("db.t").transaction() as transaction:
                    transaction.set_properties({f"p{thread}-{number}": "set"})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []
    assert sum(key.startswith("p") for key in catalog.load_table("db.t").properties) == 20


def test_threads_append_to_one_table(catalog: PolarisCatalog) -> None:
    catalog.create_table("db.t", SCHEMA, properties={"commit.retry.num-retries": "30"})
    threads = [
        threading.Thread(target=lambda n=n: catalog.load_table("db.t").append(rows((n, "x"))))
        for n in range(4)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert content(catalog.load_table("db.t")) == [(0, "x"), (1, "x"), (2, "x"), (3, "x")]


def test_a_caller_that_changes_a_loaded_table_does_not_change_the_catalogs_copy(
    catalog: PolarisCatalog,
) -> None:
    catalog.create_table("db.t", SCHEMA, properties={"a": "1"})
    first = catalog.load_table("db.t")
    first.metadata.properties["a"] = "changed"
    first.metadata.schemas.clear()
    again = catalog.load_table("db.t")
    assert (again.properties["a"], again.schema()) == ("1", SCHEMA)


def test_a_loaded_table_is_the_newest_also_after_changes_of_others(opened: Open, tmp_path: Path) -> None:
    one, two = (opened(f"sqlite://{tmp_path}/s.db", name, catalog="lake") for name in ("one", "two"))
    one.create_namespace("db")
    table = one.create_table("db.t", SCHEMA)
    assert two.load_table("db.t").properties.get("a") is None
    with table.transaction() as transaction:
        transaction.set_properties(a="1")
    assert two.load_table("db.t").properties["a"] == "1"
    one.drop_table("db.t")
    with pytest.raises(NoSuchTableError):
        two.load_table("db.t")
    one.create_table("db.t", SCHEMA, properties={"a": "2"})
    assert two.load_table("db.t").properties["a"] == "2"


def test_snapshots_are_loaded_as_asked(opened: Open, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/s.db"
    every = opened(store)
    every.create_namespace("db")
    table = every.create_table("db.t", SCHEMA)
    for number in range(3):
        table.append(rows((number, "x")))
    referenced = opened(store, **{"snapshot-loading-mode": "refs"})
    assert [len(catalog.load_table("db.t").snapshots()) for catalog in (every, referenced)] == [3, 1]
    assert len(content(referenced.load_table("db.t"))) == 3
    referenced.load_table("db.t").append(rows((3, "x")))
    assert len(every.load_table("db.t").snapshots()) == 4


def test_a_commit_of_unknown_outcome_is_repeated_under_the_same_key(
    catalog: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.create_table("db.t", SCHEMA)
    references, lost = catalog._opened.catalog.references, []
    commit = references.commit

    def lose_the_first_answer(name, change):  # type: ignore[no-untyped-def]  # as what it stands for
        done = commit(name, change)
        if not lost:
            lost.append(change)
            raise OutcomeUnknownError("the answer was lost")
        return done

    monkeypatch.setattr(references, "commit", lose_the_first_answer)
    table.append(rows((1, "a")))
    assert lost
    assert content(catalog.load_table("db.t")) == [(1, "a")]
    assert len(table.snapshots()) == 1
    assert len(_log(catalog)) == 3


def test_an_outcome_that_stays_unknown_is_reported(
    catalog: PolarisCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.create_table("db.t", SCHEMA)

    def lose(name, change):  # type: ignore[no-untyped-def]  # as what it stands for
        raise OutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(catalog._opened.catalog.references, "commit", lose)
    with pytest.raises(CommitStateUnknownException, match="lost"), table.transaction() as transaction:
        transaction.set_properties(a="1")
    with pytest.raises(CommitStateUnknownException, match="lost"):
        catalog.create_table("db.u", SCHEMA)


def _log(catalog: PolarisCatalog) -> list[str]:
    """Return the actions in the catalog's log, oldest first."""
    head = catalog._opened.catalog.head()
    return [entry.action for _, _, _, entry in entries(head.store, head.head)][::-1]
