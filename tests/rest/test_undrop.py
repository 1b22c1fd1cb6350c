"""Restoring dropped tables and views."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.catalog.merges.merge_steps import Difference
from polaris_spark.catalog.merges.state_merge import MergeStates
from polaris_spark.clock import ManualClock
from polaris_spark.commits.rows import Commit, Entries
from polaris_spark.commits.state import State
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    InputError,
    MergeConflictError,
    NotFoundError,
    PolarisError,
)
from polaris_spark.jobs.registry import call
from tests.rest.appends import appendable
from tests.rest.client import VIEW_VERSION, Client, table, view
from tests.rest.icebergs import ROWS, open_table
from tests.rest.materialized import create_materialized_view, refresh

Connected = Callable[..., Client]

DAY = 24 * 3_600_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(time.time() * 1_000))


@pytest.fixture
def catalog(connected: Connected) -> Iterator[Client]:
    client = connected()
    client.namespace("db")
    yield client
    assert call(client.session, "fsck") == []


@pytest.fixture
def connected(tmp_path: Path, clock: ManualClock) -> Iterator[Connected]:
    """Open the catalog again, like another process."""
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", str(tmp_path / "warehouse")
    with ExitStack() as stack:
        yield lambda **more: Client(
            stack.enter_context(polaris_spark.connect(store=store, warehouse=warehouse, clock=clock, **more))
        )


def undrop(client: Client, name: str, **more: Any) -> tuple[Any, ...]:
    [row] = call(client.session, "undrop", table=name, **more)
    return row


def number(client: Client) -> int:
    return client.session.catalog.head().head.number


def drop(client: Client, name: str, *, purge: bool = False) -> int:
    """Drop a table, and return the number of the commit."""
    client.ok("DELETE", table(name), query={"purgeRequested": "true"} if purge else None)
    return number(client)


def rename(client: Client, old: str, new: str) -> None:
    names = [{"namespace": ["db"], "name": one} for one in (old, new)]
    client.ok("POST", "v1/tables/rename", {"source": names[0], "destination": names[1]})


def trim(client: Client) -> None:
    """Remove all commits but the newest one from history."""
    here = client.session.catalog
    head = here.head()
    here.references.open(here.reference).amend(
        lambda now: raise_floor(now, head.store.get(head.head.commit, Commit))
    )


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call a function once, after the next undrop was prepared and before it is applied."""
    prepare = MergeStates.prepare

    def interrupted(self: MergeStates, view: State) -> Difference:
        prepared = prepare(self, view)
        monkeypatch.setattr(MergeStates, "prepare", prepare)
        act()
        return prepared

    monkeypatch.setattr(MergeStates, "prepare", interrupted)


def refused(client: Client, kind: type[PolarisError], match: str, name: str, **more: Any) -> None:
    """Check that a call is refused and changes nothing."""
    before = number(client)
    with pytest.raises(kind, match=match):
        undrop(client, name, **more)
    assert number(client) == before


def test_a_table_is_restored_with_its_identity_and_content(catalog: Client) -> None:
    appendable(catalog, "t", version=2)
    catalog.set("t", **{"my.a": "1"})
    before = catalog.load("t")
    catalog.ok("DELETE", table("t"))
    assert undrop(catalog, "db.t") == ("table", "db.t")
    assert catalog.load("t") == before
    head = catalog.session.catalog.head()
    [entry] = head.store.get(head.commit.entries, Entries).entries
    assert (entry.action, entry.before, bool(entry.after)) == ("undrop-table", 0, True)
    assert entry.summary == {"from": "undrop db.t"}
    refused(catalog, AlreadyExistsError, "restored already", "db.t")
    catalog.ok("DELETE", table("t"))
    assert undrop(catalog, "db.t") == ("table", "db.t")


def test_views_and_materialized_views_are_restored(catalog: Client) -> None:
    body = {
        "name": "v",
        "schema": {"type": "struct", "fields": []},
        "view-version": VIEW_VERSION,
        "properties": {},
    }
    catalog.ok("POST", "v1/namespaces/db/views", body)
    create_materialized_view(catalog.session.catalog, "mv")
    uuid = catalog.ok("GET", view("mv"))["metadata"]["view-uuid"]
    storage = table("storage", ("db", "mv"))
    assert catalog.send("POST", storage, refresh(uuid, 7, 1)).status == 200
    for name in ("v", "mv"):
        catalog.ok("DELETE", view(name))
    assert undrop(catalog, "db.v") == ("view", "db.v")
    assert undrop(catalog, "db.mv") == ("view", "db.mv")
    assert catalog.ok("GET", storage)["metadata"]["current-snapshot-id"] == 7


def test_a_materialized_view_that_a_merge_dropped_is_restored(catalog: Client, connected: Connected) -> None:
    create_materialized_view(catalog.session.catalog, "mv")
    call(catalog.session, "create_branch", name="dev")
    connected(branch="dev").ok("DELETE", view("mv"))
    call(catalog.session, "merge", source="dev")
    assert undrop(catalog, "db.mv") == ("view", "db.mv")
    catalog.ok("GET", table("storage", ("db", "mv")))


def test_a_materialized_view_is_restored_under_a_new_name(catalog: Client) -> None:
    mine = catalog.session.catalog
    create_materialized_view(mine, "mv")
    before = catalog.ok("GET", view("mv"))["metadata"]
    sent = refresh(before["view-uuid"], 7, 1)
    assert catalog.send("POST", table("storage", ("db", "mv")), sent).status == 200
    catalog.ok("DELETE", view("mv"))
    create_materialized_view(mine, "mv")
    refused(catalog, MergeConflictError, "give another name with 'to'", "db.mv")
    assert undrop(catalog, "db.mv", to="db.old") == ("view", "db.old")
    after = catalog.ok("GET", view("old"))["metadata"]
    storage = catalog.ok("GET", table("storage", ("db", "old")))["metadata"]
    assert (after["view-uuid"], storage["current-snapshot-id"]) == (before["view-uuid"], 7)
    assert [one["storage-table"] for one in after["versions"]] == [
        {"namespace": ["db", "old"], "name": "storage"}
    ]


def test_a_taken_name_needs_another_one_and_an_older_drop_can_be_chosen(catalog: Client) -> None:
    drops = []
    for value in ("first", "second"):
        catalog.create("t", properties={"my.a": value})
        catalog.ok("DELETE", table("t"))
        drops.append(number(catalog))
    catalog.create("t")
    refused(
        catalog,
        MergeConflictError,
        r"the branch has another table of this name \(the new one differs from it by: set my.a: second\); "
        "give another name",
        "db.t",
    )
    assert undrop(catalog, "db.t", to="db.newest") == ("table", "db.newest")
    assert undrop(catalog, "db.t", to="db.older", commit=drops[0]) == ("table", "db.older")
    values = [catalog.load(name)["metadata"]["properties"]["my.a"] for name in ("newest", "older")]
    assert values == ["second", "first"]


def test_restores_that_are_not_possible_are_refused(catalog: Client) -> None:
    refused(catalog, NotFoundError, "no table or view db.t was dropped", "db.t")
    refused(catalog, InputError, "write it like db.t", "t")
    catalog.create("t")
    catalog.ok("DELETE", table("t"), query={"purgeRequested": "true"})
    refused(catalog, BadRequestError, "dropped with PURGE", "db.t")
    catalog.namespace("gone")
    catalog.create("t", namespace=("gone",))
    location = catalog.load("t", namespace=("gone",))["metadata"]["location"]
    catalog.ok("DELETE", table("t", ("gone",)))
    dropped = number(catalog)
    catalog.ok("DELETE", "v1/namespaces/gone")
    refused(catalog, MergeConflictError, "namespace gone does not exist", "gone.t")
    catalog.create("inside", location=location)
    refused(catalog, MergeConflictError, "overlaps", "gone.t", to="db.back")
    refused(catalog, NotFoundError, f"by commit {dropped - 1}", "gone.t", commit=dropped - 1)


def test_a_drop_that_is_trimmed_cannot_be_undone(catalog: Client) -> None:
    catalog.create("t")
    catalog.ok("DELETE", table("t"))
    catalog.namespace("later")
    trim(catalog)
    refused(catalog, NotFoundError, f"since commit {number(catalog)}", "db.t")


def test_the_oldest_commit_of_the_history_can_be_undone(catalog: Client, clock: ManualClock) -> None:
    catalog.create("t")
    open_table(catalog, "t").append(ROWS)
    drop(catalog, "t")
    trim(catalog)
    clock.advance(2 * DAY)
    call(catalog.session, "sweep")
    call(catalog.session, "remove_orphans", older_than="0 s", force=True, dry_run=False)
    undrop(catalog, "db.t")
    assert open_table(catalog, "t").scan().to_arrow().num_rows == ROWS.num_rows


def test_a_drop_that_another_process_trims_meanwhile_is_not_undone(
    catalog: Client, connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connected()
    catalog.create("t")
    drop(catalog, "t")
    catalog.namespace("later")
    meanwhile(monkeypatch, lambda: trim(other))
    refused(catalog, NotFoundError, "no table or view db.t was dropped", "db.t")
    assert catalog.names("db") == []


def test_the_last_content_is_restored_if_another_process_changes_it_meanwhile(
    catalog: Client, connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connected()
    catalog.create("t")
    drop(catalog, "t")

    def change_and_drop() -> None:
        undrop(other, "db.t")
        other.set("t", **{"my.a": "changed"})
        drop(other, "t")

    meanwhile(monkeypatch, change_and_drop)
    undrop(catalog, "db.t")
    assert catalog.load("t")["metadata"]["properties"]["my.a"] == "changed"


def test_a_table_that_another_process_purges_meanwhile_is_not_restored(
    catalog: Client, connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connected()
    catalog.create("t")
    drop(catalog, "t")

    def purge_under_another_name() -> None:
        undrop(other, "db.t")
        rename(other, "t", "u")
        drop(other, "u", purge=True)

    meanwhile(monkeypatch, purge_under_another_name)
    before = number(catalog)
    with pytest.raises(BadRequestError, match=f"dropped again as db.u by commit {before + 3}"):
        undrop(catalog, "db.t")
    assert catalog.names("db") == []


def test_only_the_last_drop_of_a_table_can_be_undone(catalog: Client) -> None:
    catalog.create("t")
    first = drop(catalog, "t")
    undrop(catalog, "db.t")
    second = drop(catalog, "t")
    again = f"restored after commit {first}, and dropped again as db.t by commit {second}"
    refused(catalog, BadRequestError, again, "db.t", commit=first)
    undrop(catalog, "db.t", commit=second)
    rename(catalog, "t", "u")
    refused(catalog, AlreadyExistsError, "restored already; its name is db.u", "db.t")
    last = drop(catalog, "u", purge=True)
    for commit in (0, first, second):
        refused(catalog, BadRequestError, f"dropped again as db.u by commit {last}", "db.t", commit=commit)
    refused(catalog, BadRequestError, "dropped with PURGE", "db.u")


def test_a_renamed_table_is_restored_under_its_last_name(catalog: Client) -> None:
    catalog.create("orders")
    rename(catalog, "orders", "orders_old")
    drop(catalog, "orders_old")
    hint = "no table or view db.orders was dropped .* similar names were dropped: db.orders_old"
    refused(catalog, NotFoundError, hint, "db.orders")
    assert undrop(catalog, "db.orders_old") == ("table", "db.orders_old")
    catalog.create("orders")
    refused(catalog, NotFoundError, "db.orders exists; no table or view of this name", "db.orders")


def test_a_table_named_like_a_storage_table_is_not_restored_with_a_table(
    catalog: Client, connected: Connected
) -> None:
    catalog.namespace("db", "t")
    catalog.create("storage", namespace=("db", "t"))
    catalog.create("t")
    call(catalog.session, "create_branch", name="dev")
    dev = connected(branch="dev")
    drop(dev, "t")
    dev.ok("DELETE", table("storage", ("db", "t")))
    call(catalog.session, "merge", source="dev")
    assert undrop(catalog, "db.t", to="db.u") == ("table", "db.u")
    assert catalog.names("db", "t") == []
    assert undrop(catalog, "db.t.storage") == ("table", "db.t.storage")


def test_a_table_named_like_a_storage_table_does_not_hide_an_older_drop(catalog: Client) -> None:
    catalog.create("t")
    drop(catalog, "t")
    catalog.namespace("db", "t")
    catalog.create("storage", namespace=("db", "t"))
    catalog.ok("DELETE", table("storage", ("db", "t")))
    assert undrop(catalog, "db.t") == ("table", "db.t")


def test_a_new_name_must_be_allowed(catalog: Client) -> None:
    catalog.create("t")
    drop(catalog, "t")
    refused(catalog, BadRequestError, "choose another name", "db.t", to="db.`..`")


def test_jobs_keep_what_a_restored_table_needs(catalog: Client, clock: ManualClock) -> None:
    catalog.create("t")
    rows = open_table(catalog, "t")
    rows.append(ROWS)
    catalog.ok("DELETE", table("t"))
    clock.advance(2 * DAY)
    call(catalog.session, "sweep")
    call(catalog.session, "remove_orphans", older_than="0 s", force=True, dry_run=False)
    undrop(catalog, "db.t")
    clock.advance(30 * DAY)
    catalog.namespace("later")
    call(catalog.session, "sweep")
    call(catalog.session, "remove_orphans", older_than="0 s", force=True, dry_run=False)
    assert open_table(catalog, "t").scan().to_arrow().sort_by("a") == ROWS.sort_by("a")


def test_the_revert_of_a_drop_does_not_restore_what_was_purged_later(catalog: Client) -> None:
    catalog.create("t")
    first = drop(catalog, "t")
    undrop(catalog, "db.t")
    drop(catalog, "t", purge=True)
    with pytest.raises(MergeConflictError, match="its files may be deleted already"):
        call(catalog.session, "revert", commit=str(first))
    assert catalog.names("db") == []


def test_an_error_names_the_parameter_that_restores_an_older_drop(catalog: Client) -> None:
    for _ in range(2):
        catalog.create()
        dropped = drop(catalog, "t")
    older = dropped - 2
    undrop(catalog, "db.t")
    rename(catalog, "t", "moved")
    with pytest.raises(AlreadyExistsError, match=r"is db\.moved; give 'commit' to restore an older drop"):
        undrop(catalog, "db.t")
    assert undrop(catalog, "db.t", commit=older) == ("table", "db.t")
    drop(catalog, "moved", purge=True)
    with pytest.raises(BadRequestError, match="with PURGE, so its files are or will be deleted"):
        undrop(catalog, "db.moved")
