"""`polaris-spark schedule`, `queue`, `runs` and `policy`: procedures of a catalog's queue and policies as commands."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_group, command_of
from polaris_spark.jobs import policies
from polaris_spark.jobs.queue import history, tasks
from polaris_spark.jobs.registry import ADD_SCHEDULE, ENQUEUE

schedule = command_group(
    "schedule",
    "Add, list and drop schedules, which workers run (polaris-spark work).",
    {"add": ADD_SCHEDULE, "show": tasks.SHOW_SCHEDULES, "drop": tasks.DROP_SCHEDULE},
)
queue = command_group(
    "queue",
    "Let workers run procedures once; list, repeat and remove such tasks.",
    {"add": ENQUEUE, "show": tasks.SHOW_QUEUE, "retry": tasks.RETRY_TASK, "drop": tasks.DROP_TASK},
)
policy = command_group(
    "policy",
    "Create, change, attach, detach and drop policies, which decide what jobs and workers do.",
    {
        "create": policies.CREATE,
        "update": policies.UPDATE,
        "drop": policies.DROP,
        "attach": policies.ATTACH,
        "detach": policies.DETACH,
        "show": policies.SHOW,
        "applicable": policies.APPLICABLE,
    },
)
runs = command_of(history.SHOW_RUNS, "runs")
