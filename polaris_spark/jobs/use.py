"""`use`: chooses the state of the catalog that the running Spark session uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from polaris_spark.access.needs import OPEN
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.states import catalog_at, name_of_state

    catalog = call.session.catalog
    if "state" in arguments:
        catalog = catalog_at(catalog, arguments["state"])
    head = catalog.head().head
    changed = datetime.fromtimestamp(head.time / 1000, timezone.utc)
    return [(name_of_state(catalog), head.number, head.commit, changed)]


PROCEDURE = Procedure(
    name="use",
    needs=OPEN,
    comment="Choose the branch, or the past state of a branch, that this Spark session uses.",
    parameters=(
        Parameter(
            "state",
            "STRING",
            "a branch, a commit or time of the present branch, or `<branch>#<commit or time>`; by default, the present "
            "state is only shown",
        ),
    ),
    columns=columns("state STRING, commit_number BIGINT, commit_id BIGINT, committed_at TIMESTAMP"),
    run=_run,
    only_reads=True,
    switches=True,
)
