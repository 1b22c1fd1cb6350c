"""Changes of materialized views, killed before each of their operations on the database: the view and its storage table
change together or not at all, and `remove_orphans` deletes the files that the killed process wrote."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from pyiceberg.exceptions import NoSuchTableError

from polaris_spark.jobs.registry import call
from polaris_spark.testing.waiting import PATIENCE_S
from tests.faults.killing import die_at
from tests.forking import context, preload
from tests.maintenance.lakes import Lake
from tests.maintenance.test_materialized_views import below, loaded, needed, run_now, storage_of, stored
from tests.rest.materialized import create_materialized_view, refresh_rows
from tests.stores import SHARED, StoreOn

preload(__name__)
pytestmark = pytest.mark.usefixtures("brief_glances")

OTHER = "SELECT a + 1 AS a FROM t"
"""The query after a replacement."""


class Change(NamedTuple):
    """A change of the materialized view `db.v`, whose rows are 1 and 2."""

    run: Callable[[Lake], object]
    before: object
    """What `state` returns before the change."""
    after: object
    """What `state` returns after the change."""


def state(lake: Lake) -> object:
    """The name, query, rows and a property of the view, `db.v` or `db.w`. Check that they fit the storage table."""
    for name in ("db.v", "db.w"):
        if not lake.catalog.view_exists(name):
            with pytest.raises(NoSuchTableError):
                lake.catalog.load_table(f"{name}.storage")
            continue
        metadata, table = loaded(lake, name)["metadata"], storage_of(lake, name)
        assert f'"storage-table-location":"{table.metadata_location}"' in str(metadata["properties"])
        [query] = metadata["versions"][-1]["representations"]
        return name, query["sql"] == OTHER, stored(table), table.properties.get("write.x")
    return None


def refresh(lake: Lake) -> None:
    refresh_rows(lake.catalog, "db.v", [1, 2, 3])


def create(lake: Lake, *, replace: bool = False) -> None:
    create_materialized_view(
        lake.session.catalog, "v", OTHER if replace else "SELECT a FROM t", replace=replace
    )


def alter(lake: Lake) -> None:
    call(lake.session, "alter_materialized_view", view="db.v", set_properties={"write.x": "1"})


def rename(lake: Lake) -> None:
    call(lake.session, "alter_materialized_view", view="db.v", rename_to="db.w")


def drop(lake: Lake) -> None:
    call(lake.session, "drop_materialized_view", view="db.v", if_exists=True)


def purge(lake: Lake) -> None:
    call(lake.session, "drop_materialized_view", view="db.v", purge=True, if_exists=True)


V = ("db.v", False, [1, 2], None)
CHANGES = {
    "create": Change(create, None, ("db.v", False, [], None)),
    "replace": Change(lambda lake: create(lake, replace=True), V, ("db.v", True, [], None)),
    "refresh": Change(refresh, V, ("db.v", False, [1, 2, 3], None)),
    "alter": Change(alter, V, ("db.v", False, [1, 2], "1")),
    "rename": Change(rename, V, ("db.w", False, [1, 2], None)),
    "drop": Change(drop, V, None),
    "purge": Change(purge, V, None),
}


def opened(uri: str, folder: Path) -> Lake:
    return Lake(uri, folder / "warehouse", grace="0s")


def die(uri: str, folder: Path, name: str, number: int) -> None:
    """Make a change, and be killed before an operation on the database. Called in another process."""
    lake = opened(uri, folder)
    die_at(number, [lake.session.connection.backend, lake.catalog._opened.connection.backend])
    CHANGES[name].run(lake)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    "scheme",
    [pytest.param(one, marks=() if one == "sqlite" else pytest.mark.exhaustive) for one in SHARED],
)
def test_a_process_may_be_killed_before_each_operation_on_the_database(
    scheme: str, name: str, store_on: StoreOn, tmp_path: Path
) -> None:
    orphans, took_effect = set[Path](), list[bool]()
    for number in count(1):
        uri = store_on(scheme)  # a new one, because each check reads the whole history
        with closing(opened(uri, tmp_path / str(number))) as lake:
            is_killed, effect = killed_at(lake, name, number, orphans)
        took_effect.append(effect)
        if not is_killed:
            break
    print(f"{name}: killed {number - 1} times; took effect {took_effect}; {len(orphans)} orphans")
    assert took_effect[-1]
    assert not took_effect[0]
    assert name != "refresh" or any(one.suffix == ".parquet" for one in orphans)


def killed_at(lake: Lake, name: str, number: int, orphans: set[Path]) -> tuple[bool, bool]:
    """Make a change in another process, which is killed before an operation on the database. Then complete the change,
    and delete everything.

    Args:
        orphans: gets the files that the process left.
    Returns:
        whether the process made so many operations that it was killed, and whether the change took effect.
    """
    asked = CHANGES[name]
    lake.table()
    if asked.before is not None:
        create(lake)
        refresh_rows(lake.catalog, "db.v", [1, 2])
    process = context.Process(target=die, args=(lake.store, lake.warehouse.parent, name, number))
    process.start()
    process.join(PATIENCE_S)
    found = state(lake)
    assert found in (asked.before, asked.after), f"killed before operation {number}"
    if found == asked.before:
        assert process.exitcode == -signal.SIGKILL
        asked.run(lake)
        assert state(lake) == asked.after
    assert call(lake.session, "fsck") == []
    there = next((one for one in ("db.v", "db.w") if lake.catalog.view_exists(one)), None)
    if there is not None:
        lake.old()
        folder, kept = below(lake, there), needed(lake, there)
        written = {file for file in folder.rglob("*") if file.is_file()}
        orphans |= written - kept
        run_now(lake, "remove_orphans", table=there, dry_run=False)
        assert {file for file in folder.rglob("*") if file.is_file()} == kept
        assert state(lake) == asked.after
        call(lake.session, "drop_materialized_view", view=there)
    lake.old()
    lake.catalog.create_namespace("later")
    run_now(lake, "trim")
    run_now(lake, "purge_dropped")
    run_now(lake, "remove_orphans", dry_run=False)
    assert not [file for file in lake.files() if "storage" in file.parts]
    assert call(lake.session, "fsck") == []
    return process.exitcode != 0, found == asked.after
