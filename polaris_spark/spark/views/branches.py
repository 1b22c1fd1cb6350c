"""The system view `branches`: one row for each branch of a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.merge_base import Distance, distance
from polaris_spark.catalog.references import heads_prefix
from polaris_spark.commits.rows import Head
from polaris_spark.names import MAIN, transaction_end_ms
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import LONG, STRING, TIMESTAMP, ViewColumn, micros
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted


class BranchTask(NamedTuple):
    """A branch, and the head of the branch `main` of the same catalog."""

    realm: str
    """Instance id of the realm."""
    catalog: str
    """Name of the catalog."""
    name: str
    head: Head
    main: Head | None
    """Head of the branch `main`; None if `main` does not exist."""


class BranchRow(NamedTuple):
    """A branch, and its distance from `main`; the distance is None if the common commits are no longer stored."""

    branch: BranchTask
    parted: Distance | None


class Branches(SystemView[BranchTask, BranchRow]):
    """A system view with one row for each branch of a catalog."""

    comment = "Branches of catalogs, one row each; branches of tables are in the view refs"
    rows_per_partition = 50
    columns = (
        ViewColumn("catalog", STRING, "Name of the catalog", lambda row: row.branch.catalog),
        ViewColumn("branch", STRING, "Name of the branch", lambda row: row.branch.name),
        ViewColumn("commit_id", LONG, "Newest commit", lambda row: row.branch.head.commit),
        ViewColumn("number", LONG, "Number of the newest commit", lambda row: row.branch.head.number),
        ViewColumn(
            "committed_at",
            TIMESTAMP,
            "Time of the newest commit",
            lambda row: micros(row.branch.head.time),
        ),
        ViewColumn(
            "ahead",
            LONG,
            "Commits that main does not have; null if the commits that both have are no longer stored",
            lambda row: row.parted and row.parted.ahead,
        ),
        ViewColumn(
            "behind",
            LONG,
            "Commits that only main has; null if the commits that both have are no longer stored",
            lambda row: row.parted and row.parted.behind,
        ),
    )

    def plan(self, request: ScanRequest) -> list[Weighted[BranchTask]]:
        request.refuse_as_of("it shows branches as they are now; the view commits shows their history")
        realm = request.store.realm(request.options.realm)
        wanted = request.options.catalog
        catalogs = realm.catalogs() if wanted is None else [realm.catalog(wanted)]
        registered = realm.registered()
        tasks = []
        for catalog in catalogs:
            if not request.condition("catalog").allows(catalog.name):
                continue
            prefix = heads_prefix(catalog)
            heads = {
                one.name.removeprefix(prefix): realm.head_of(one)
                for one in registered
                if one.name.startswith(prefix)
            }
            live = {
                name: msgspec.structs.replace(head, recent=(), slots=())
                for name, head in heads.items()
                if not head.sealed and transaction_end_ms(name) is None  # sealed: dropped since it was listed
            }
            for name, head in live.items():
                task = BranchTask(realm.record.instance, catalog.name, name, head, live.get(MAIN))
                tasks.append(Weighted(task, 1))
        return tasks

    def rows(self, store: ReadStore, task: BranchTask, needs: frozenset[str]) -> Iterator[BranchRow]:
        parted = None if task.main is None else distance(store.objects(task.realm), task.head, task.main)
        yield BranchRow(task, parted)


SYSTEM_VIEW = Branches()
