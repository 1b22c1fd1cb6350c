"""Procedures that create, drop, restore and list the branches of a catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from polaris_spark.errors import AlreadyExistsError, NotFoundError
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure
from polaris_spark.names import MAIN

if TYPE_CHECKING:
    from polaris_spark.catalog.branches import Branch


def _create(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches import Branch, branch_of, create_branch

    catalog, name = call.session.catalog, arguments["name"]
    source, point = arguments.get("source", catalog.branch), arguments.get("at", "")
    try:
        made = create_branch(catalog, name, call.session.operation(), source=source, point=point)
    except AlreadyExistsError:
        if not arguments.get("if_not_exists", False):
            raise
        return [(*_row(Branch(name, branch_of(catalog, name).head)), False)]
    return [(*_row(made), True)]


def _drop(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches import drop_branch

    name = arguments["name"]
    try:
        drop_branch(call.session.catalog, name, call.session.operation())
    except NotFoundError:
        if not arguments.get("if_exists", False):
            raise
        return [(name, False)]
    return [(name, True)]


def _undrop(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches import undrop_branch

    operation = call.session.operation()
    return [_row(undrop_branch(call.session.catalog, arguments["name"], operation))]


def _show(call: Call, _: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches import branches
    from polaris_spark.catalog.merge_base import distance

    catalog = call.session.catalog
    found = branches(catalog)
    main = next((one.head for one in found if one.name == MAIN), None)
    for one in found:
        call.check()
        parted = None if main is None else distance(catalog.references.store, one.head, main)
        yield (*_row(one), *((None, None) if parted is None else parted))


def _row(branch: Branch) -> tuple[Any, ...]:
    head = branch.head
    changed = datetime.fromtimestamp(head.time / 1000, timezone.utc)
    return branch.name, head.number, head.commit, changed


_COMMIT = (
    Column("commit_number", "BIGINT"),
    Column("commit_id", "BIGINT"),
    Column("committed_at", "TIMESTAMP"),
)
_NAME = Parameter("name", "STRING", "name of the branch", required=True)
CREATE = Procedure(
    name="create_branch",
    comment="Create a branch of the catalog, which begins with the state of another branch.",
    parameters=(
        _NAME,
        Parameter("source", "STRING", "the other branch; by default, the branch of the session"),
        Parameter("at", "STRING", "number, id or time of the commit to begin with; by default, the newest"),
        Parameter("if_not_exists", "BOOLEAN", "whether to do nothing if the branch exists"),
    ),
    columns=(Column("branch", "STRING"), *_COMMIT, Column("created", "BOOLEAN")),
    run=_create,
    over_http=True,
)
DROP = Procedure(
    name="drop_branch",
    comment="Drop a branch of the catalog. It can be restored until the grace period ends.",
    parameters=(_NAME, Parameter("if_exists", "BOOLEAN", "whether to do nothing if it does not exist")),
    columns=(Column("branch", "STRING"), Column("dropped", "BOOLEAN")),
    run=_drop,
    over_http=True,
)
UNDROP = Procedure(
    name="undrop_branch",
    comment="Restore a dropped branch of the catalog.",
    parameters=(_NAME,),
    columns=(Column("branch", "STRING"), *_COMMIT),
    run=_undrop,
    over_http=True,
)
SHOW = Procedure(
    name="show_branches",
    comment="List the branches of the catalog, and how many commits each is ahead of and behind main.",
    parameters=(),
    columns=(Column("branch", "STRING"), *_COMMIT, Column("ahead", "BIGINT"), Column("behind", "BIGINT")),
    run=_show,
    over_http=True,
    only_reads=True,
)
