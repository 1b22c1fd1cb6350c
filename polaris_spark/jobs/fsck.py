"""`fsck`: finds problems in the store, and reports the exact row of each problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.errors import ForbiddenError
from polaris_spark.jobs.engine import engine_of
from polaris_spark.jobs.maintenance import job
from polaris_spark.jobs.procedure import Call, Parameter, columns


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.fsck.checker import RealmCheck
    from polaris_spark.maintenance.periods import realm_policy

    session = call.session
    realm, served = arguments.get("only"), session.properties.realm
    if call.over_http:
        if realm not in (None, served):
            raise ForbiddenError(f"HTTP clients may check only the served realm, {served!r}")
        realm = served
    check = RealmCheck(
        session.connection.backend,
        session.connection.clock,
        realm=realm,
        grace_ms=realm_policy(session.catalog).shortest_grace_ms,
        engine=engine_of(call),
    )
    return [tuple(problem) for problem in check.run()]


PROCEDURE = job(
    name="fsck",
    comment="Find and report every row of the store that is damaged, missing or inconsistent with other rows.",
    parameters=(Parameter("only", "STRING", "check only this realm; by default, all realms of the store"),),
    columns=columns(
        "severity STRING, kind STRING, realm STRING, reference STRING, key STRING, path STRING, "
        "message STRING"
    ),
    run=_run,
    over_http=True,
    scope="store",
    finds_faults=True,
)
