"""Rows of a catalog's queue, and the indexes of the reference `cat/<id>/queue`.

| index | key | pointer | value |
| --- | --- | --- | --- |
| `tasks` | id of a task (8 bytes) | `QueuedTask` | its key in `due` |
| `due` | time (8 bytes), id of a task (8 bytes) | | empty |
| `schedules` | name of a schedule, in UTF-8 | | id of its task |
| `runs` | time of the end (8 bytes), id (8 bytes) | `RunRecord` | number of the run (8 bytes) |
| `counts` | `tasks` | | number of tasks (8 bytes) |
| | `policies` | | id of the commit of the policies whose tasks are in the queue (8 bytes) |

Times are milliseconds since 1970. The time in `due` is the time from which on a worker may do something with the task:
run it; or, if a worker holds its lease, take it over; or, if it has failed, forget it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.objects import object_type

TASKS: Final = "tasks"
DUE: Final = "due"
SCHEDULES: Final = "schedules"
RUNS: Final = "runs"
COUNTS: Final = "counts"

Origin = Literal["user", "schedule", "task", "policy"]
"""What caused a run: a caller, a schedule, a task in the queue, or a policy."""

Outcome = Literal["succeeded", "failed", "cancelled", "lost"]
"""How a run ended. A run is lost if its process died, or lost the lease of the task. It is cancelled if it was asked to
stop, because its task was dropped or replaced."""


class Timing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a task runs again. A task that has neither an interval nor a cron expression runs once."""

    every_ms: int = 0
    """Interval in milliseconds; 0 if there is none."""
    cron: str = ""
    """Cron expression, in UTC; empty if there is none."""
    jitter_ms: int = 0
    """Maximum random delay of each run, in milliseconds."""

    @property
    def repeats(self) -> bool:
        """Whether the task runs more than once."""
        return bool(self.every_ms or self.cron)


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The lease under which a worker runs a task."""

    holder: str
    """Host and process of the worker."""
    run: bytes
    """Unique id of the run."""
    started_ms: int
    """Start of the run, in milliseconds since 1970."""
    until_ms: int
    """End of the lease, in milliseconds since 1970."""


@object_type("queued-task", revision=1)
class QueuedTask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A task: a procedure that workers run once, or repeatedly."""

    id: int
    origin: Origin
    name: str
    """Name of the schedule, or type of the policy; empty for a task that runs once."""
    procedure: str
    arguments: bytes
    """Arguments of the procedure by name, as JSON text. They contain no secrets."""
    branch: str
    """Branch of the catalog in which the procedure runs."""
    principal: str
    """The principal that added the task, and as which it runs; empty for the principal of the worker."""
    roles: tuple[str, ...] | None
    """The principal roles that were active for the principal; None for all."""
    caller: Literal["local", "http"]
    """Where the task came from, which decides what its arguments may name."""
    created_ms: int
    due_ms: int
    """Time at which the task is due, in milliseconds since 1970. Attempts after the first one do not change it."""
    attempts: int
    """Number of attempts after which a task fails."""
    timing: Timing = Timing()
    attempt: int = 0
    """Number of attempts that were begun since the task was due."""
    lease: Lease | None = None
    has_failed: bool = False
    """Whether the last attempt of a task that runs once has failed."""
    error: str = ""
    """Error of the last attempt; empty if there was none."""
    next_ms: int = 0
    """Time of the next attempt in milliseconds since 1970, if the task waits."""
    is_verified: bool = False
    """Whether the principal had logged in when it added the task. If not, the realm had no access control then."""


@object_type("run", revision=1)
class RunRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of a procedure that has ended."""

    run: bytes
    """Unique id of the run."""
    procedure: str
    arguments: str
    """Arguments as JSON text, in which `***` replaces secrets."""
    branch: str
    origin: Origin
    name: str
    """Name of the schedule, type of the policy, or id of the task in hexadecimal; empty for a run by a caller."""
    attempt: int
    """Number of the attempt, counted from 1."""
    principal: str
    holder: str
    """Host and process that ran it."""
    started_ms: int
    """Start of the run, in milliseconds since 1970."""
    ended_ms: int
    """End of the run, in milliseconds since 1970. For a lost run, the time at which the loss was noticed."""
    outcome: Outcome
    error: str
    """The error message; empty if the run succeeded."""
    statistics: dict[str, int]
    """Number of rows of the result (`rows`), and the sum of each column of whole numbers."""


def queue_reference(row: CatalogRow) -> str:
    """Return the name of the reference that holds a catalog's queue."""
    return f"cat/{row.entity_id:x}/queue"
