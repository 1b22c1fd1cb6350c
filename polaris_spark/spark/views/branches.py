"""The system view `branches`: one row for each branch and tag of a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from polaris_spark.access import securables
from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import Scope
from polaris_spark.catalog.branches.merge_base import Distance, created_ms, distance
from polaris_spark.catalog.catalogs.references import catalog_prefix
from polaris_spark.commits.rows import Head
from polaris_spark.names import MAIN
from polaris_spark.property_values import duration_text
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import BOOLEAN, LONG, STRING, TIMESTAMP, ViewColumn, micros
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted
from polaris_spark.system.registrations import Registration, name_parts


def _duration(ms: int) -> str | None:
    return duration_text(ms) if ms else None


class BranchTask(NamedTuple):
    """A branch or tag, and the head of the branch `main` of the same catalog."""

    realm: str
    """Instance id of the realm."""
    catalog: str
    """Name of the catalog."""
    is_tag: bool
    name: str
    head: Head
    registration: Registration
    main: Head | None
    """Head of the branch `main`; None if `main` does not exist."""
    catalog_id: int


class BranchRow(NamedTuple):
    """A branch or tag, and by how many commits it is ahead of and behind `main`. The numbers are None if the commits
    that it shares with `main` are no longer stored."""

    branch: BranchTask
    parted: Distance | None
    created: int
    """Time at which it was created or last reassigned (`created_ms`), in milliseconds since 1970."""


class Branches(SystemView[BranchTask, BranchRow]):
    """A system view with one row for each branch and tag of a catalog."""

    shown = (Need("BRANCH_LIST", On.BRANCH),)
    comment = "Branches and tags of catalogs, one row each; those of tables are in the view refs"
    rows_per_partition = 50
    columns = (
        ViewColumn("catalog", STRING, "Name of the catalog", lambda row: row.branch.catalog),
        ViewColumn("kind", STRING, "`branch` or `tag`", lambda row: "tag" if row.branch.is_tag else "branch"),
        ViewColumn("name", STRING, "Name of the branch or tag", lambda row: row.branch.name),
        ViewColumn(
            "commit_id",
            LONG,
            "Newest commit of the branch, or the commit of the tag",
            lambda row: row.branch.head.commit,
        ),
        ViewColumn("number", LONG, "Number of this commit", lambda row: row.branch.head.number),
        ViewColumn(
            "committed_at",
            TIMESTAMP,
            "Time of this commit",
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
        ViewColumn(
            "owner",
            STRING,
            "Principal that owns it; null if an earlier release created it",
            lambda row: row.branch.registration.owner or None,
        ),
        ViewColumn("comment", STRING, "Text for people", lambda row: row.branch.registration.comment or None),
        ViewColumn(
            "source",
            STRING,
            "Branch, tag or commit that it began with",
            lambda row: row.branch.registration.origin or None,
        ),
        ViewColumn(
            "protected",
            BOOLEAN,
            "Whether only merges, reverts and cherry-picks may change the branch",
            lambda row: row.branch.registration.protected,
        ),
        ViewColumn(
            "retention",
            STRING,
            "Minimum time for which the branch's history is kept, if the branch has its own",
            lambda row: _duration(row.branch.registration.keep_ms),
        ),
        ViewColumn(
            "keep_commits",
            LONG,
            "Minimum number of commits before the newest one that are kept, if the branch has its own",
            lambda row: row.branch.registration.keep_commits or None,
        ),
        ViewColumn(
            "created_at",
            TIMESTAMP,
            "Time at which a branch was created or last reassigned; of a tag, when it was created, renamed or restored",
            lambda row: micros(row.created),
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
            prefix = catalog_prefix(catalog)
            found = {
                (parts.is_tag, parts.name): (realm.head_of(one), one.registration)
                for one in registered
                if (parts := name_parts(one.name)) is not None and parts.catalog == prefix
            }
            live = {
                key: (msgspec.structs.replace(head, recent=(), slots=()), registration)
                for key, (head, registration) in found.items()
                if not head.sealed  # dropped since it was listed
            }
            main, _ = live.get((False, MAIN), (None, None))
            for (is_tag, name), (head, registration) in live.items():
                instance, id = realm.record.instance, catalog.entity_id
                task = BranchTask(instance, catalog.name, is_tag, name, head, registration, main, id)
                tasks.append(Weighted(task, 1))
        return tasks

    def rows(self, store: ReadStore, task: BranchTask, needs: frozenset[str]) -> Iterator[BranchRow]:
        objects = store.objects(task.realm)
        parted = None if task.main is None else distance(objects, task.head, task.main)
        created = created_ms(objects, task.head, task.registration, task.catalog_id, is_tag=task.is_tag)
        yield BranchRow(task, parted, created)

    def sees(self, store: ReadStore, scope: Scope, row: BranchRow) -> bool:
        id = row.branch.catalog_id
        whole = (securables.catalog(id), securables.REALM)
        chain = whole if row.branch.is_tag else (securables.branch(id, row.branch.name), *whole)
        return scope.sees_all_of(id) or scope.may("BRANCH_LIST", chain)


SYSTEM_VIEW = Branches()
