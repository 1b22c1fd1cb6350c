"""Procedures of staging areas: choose an area, and commit the changes that were staged in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.access.needs import Need, On
from polaris_spark.jobs.merges import CONFLICTS, KEEP_LOG, MERGED, options, reads
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns
from polaris_spark.names import AREA


def _stage(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.merges.staging import stage
    from polaris_spark.jobs.branches import begin, clear

    clear(call, AREA + arguments["name"])
    staged, is_new = stage(call.session.catalog, arguments["name"], call.session.operation())
    if is_new:
        begin(call, staged.branch)
    return [(staged.branch, staged.head().head.number)]


def _commit_staged(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.merges.staging import commit_staged
    from polaris_spark.jobs.permission import require_needs

    session, chosen = call.session, options(call, arguments)

    def require(target: str) -> None:
        needs = (Need("BRANCH_MERGE", On.BRANCH, parameter="target"), *reads("target"))
        require_needs(session, needs, {"target": target})

    return commit_staged(session.catalog, arguments["name"], session.operation(), chosen, require=require)


_NAME = Parameter("name", "STRING", "name of the staging area", required=True)
STAGE = Procedure(
    name="stage",
    needs=(Need("BRANCH_CREATE", On.CATALOG),),
    comment="From now on, stage the changes of this Spark session in a staging area for its branch. Other sessions and "
    "processes can use the same area. It is created if it does not exist.",
    parameters=(_NAME,),
    columns=columns("state STRING, commit_number BIGINT"),
    run=_stage,
    over_http=True,
    switches=True,
)
COMMIT_STAGED = Procedure(
    name="commit_staged",
    needs=(
        Need(
            "",
            On.OWN,
            why="`BRANCH_MERGE`, `TABLE_READ_DATA` and `VIEW_READ_PROPERTIES` on the branch of the area",
        ),
        *reads("name", On.AREA),
    ),
    comment="Bring all changes of a staging area to its branch, in one commit.",
    parameters=(_NAME, *CONFLICTS, KEEP_LOG),
    columns=MERGED,
    run=_commit_staged,
    uses_spark=True,
    queries=True,
    by_sql=True,
    over_http=True,
)
