"""`polaris-spark schedule`, `queue` and `runs`: the procedures of a catalog's queue as commands."""

from __future__ import annotations

from polaris_spark.cli.maintain import command_group, command_of
from polaris_spark.jobs.queue import history, tasks

schedule = command_group(
    "schedule",
    "Add, list and drop schedules, which workers run (polaris-spark work).",
    {"add": tasks.ADD_SCHEDULE, "show": tasks.SHOW_SCHEDULES, "drop": tasks.DROP_SCHEDULE},
)
queue = command_group(
    "queue",
    "Let workers run procedures once; list, repeat and remove such tasks.",
    {"add": tasks.ENQUEUE, "show": tasks.SHOW_QUEUE, "retry": tasks.RETRY_TASK, "drop": tasks.DROP_TASK},
)
runs = command_of(history.SHOW_RUNS, "runs")
