"""The tasks in a catalog's queue that its policies require."""

from __future__ import annotations

import json

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.commits.state import State
from polaris_spark.maintenance.policies.applicable import namespace_of
from polaris_spark.maintenance.policies.changes import policies_in, targets_of
from polaris_spark.maintenance.policies.types import TYPES, MaintenanceContent, parsed
from polaris_spark.maintenance.queue.rows import QueuedTask, Timing
from polaris_spark.names import MAIN

_ATTEMPTS = 3
_ARGUMENTS = {"expire": {"by_policy": True}, "remove_orphans": {"by_policy": True, "dry_run": False}}


def tasks_of_policies(catalog: Catalog, state: State | None) -> list[QueuedTask]:
    """Return the tasks that the policies of a catalog require: one for each type of policy that a job carries out, if
    at least one policy of the type is enabled and attached to a target. The shortest interval of these policies
    applies.

    Args:
        state: the newest state of the policies; None if there are none.
    """
    head = catalog.head()
    intervals: dict[str, int] = {}
    for policy in [] if state is None else policies_in(state):
        kind = TYPES.get(policy.type)
        if state is None or kind is None or not kind.job or namespace_of(head, policy) is None:
            continue
        content = parsed(policy.type, policy.content)
        if isinstance(content, MaintenanceContent) and content.enable and targets_of(state, policy):
            intervals[policy.type] = min(content.interval_ms, intervals.get(policy.type, content.interval_ms))
    return [
        QueuedTask(
            id=0,
            origin="policy",
            name=name,
            procedure=TYPES[name].job,
            arguments=json.dumps(_ARGUMENTS[TYPES[name].job]).encode(),
            branch=MAIN,
            principal="",
            roles=None,
            caller="local",
            created_ms=0,
            due_ms=0,
            attempts=_ATTEMPTS,
            timing=Timing(every_ms=interval),
        )
        for name, interval in sorted(intervals.items())
    ]
