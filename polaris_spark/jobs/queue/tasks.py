"""Procedures that add, list and remove the schedules and tasks of a catalog's queue."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import (
    BadRequestError,
    ForbiddenError,
    InputError,
    NotFoundError,
    OutcomeUnknownError,
)
from polaris_spark.jobs.procedure import IF_EXISTS, Call, Parameter, Procedure, columns
from polaris_spark.names import problem_of
from polaris_spark.property_values import duration_ms, duration_text

if TYPE_CHECKING:
    from polaris_spark.maintenance.queue.rows import QueuedTask, Timing
    from polaris_spark.rest.session import Session

DEFAULT_ATTEMPTS = 5
_MOST_ATTEMPTS = 100
MAX_NAME_BYTES = 200
"""Maximum length of the name of a schedule, in bytes of UTF-8."""
MAX_ARGUMENT_BYTES = 32_768
"""Maximum size of the arguments of a task, in bytes."""

_IN_SESSIONS = frozenset({"begin", "commit", "rollback", "savepoint", "use"})
"""Procedures that change only the session that calls them."""
_RETURN_SECRETS = frozenset({"create_principal", "reset_credentials", "rotate_credentials"})
"""Procedures whose result contains a new secret. If a worker ran them, nobody would get the secret."""

Find = Callable[[str], Procedure]
"""A function that returns the procedure of the given name, or raises `InputError` if there is none."""


def new_task(
    find: Find,
    call: Call,
    arguments: Mapping[str, Any],
    *,
    origin: Literal["schedule", "task"],
    name: str,
    timing: Timing,
    due_ms: int,
) -> QueuedTask:
    """Return a task that runs the procedure `arguments["procedure"]` as the principal of the call.

    The principal needs the privileges that the procedure needs, now and whenever the task runs.

    Raises:
        InputError: the procedure cannot run in a worker, an argument of it is not valid or is a secret, or the number
            of attempts is out of range.
        ForbiddenError: the principal lacks a privilege, or the procedure cannot be called over HTTP.
    """
    from polaris_spark.jobs.queue.history import secret_in
    from polaris_spark.jobs.queue.values import parsed_arguments, to_json
    from polaris_spark.maintenance.queue.rows import QueuedTask

    procedure, session = find(arguments["procedure"]), call.session
    _require_queueable(procedure, call)
    given = parsed_arguments(procedure, arguments.get("arguments") or {})
    secret = secret_in(given)
    if secret is not None:
        raise InputError(
            f"the argument or option {secret!r} is a secret, which the queue does not store: write env:NAME, where "
            "NAME is an environment variable of the workers that contains it"
        )
    procedure.check_values(call, given)
    attempts = arguments.get("attempts", DEFAULT_ATTEMPTS)
    if not 1 <= attempts <= _MOST_ATTEMPTS:
        raise InputError(f"attempts is {attempts}; it must be from 1 to {_MOST_ATTEMPTS}")
    stored = to_json(procedure, given)
    if len(stored) > MAX_ARGUMENT_BYTES:
        raise InputError(f"the arguments have {len(stored)} bytes; the maximum is {MAX_ARGUMENT_BYTES}")
    roles = None if session.roles is None else tuple(sorted(session.roles))
    return QueuedTask(
        id=0,
        origin=origin,
        name=name,
        procedure=procedure.name,
        arguments=stored,
        branch=session.catalog.branch,
        principal=session.principal,
        roles=roles,
        caller="http" if call.over_http else "local",
        created_ms=0,
        due_ms=due_ms,
        attempts=attempts,
        timing=timing,
        # Without access control, the token of a server does not prove who the principal is.
        is_verified=session.is_verified and session.access.is_on,
    )


def _require_queueable(procedure: Procedure, call: Call) -> None:
    """Check that a worker can run a procedure, and that the caller may put it into the queue."""
    problem = (
        "changes only the session that calls it"
        if procedure.name in _IN_SESSIONS
        else "returns a secret to its caller"
        if procedure.name in _RETURN_SECRETS
        else "needs Spark"
        if procedure.needs_spark or procedure.by_sql
        else None
    )
    if problem is not None:
        raise InputError(f"{procedure.name} {problem}, so a worker cannot run it")
    if call.over_http and not procedure.over_http:
        raise ForbiddenError(
            f"procedure {procedure.name} cannot be called over HTTP, so it cannot be put into the queue over HTTP"
        )


def _commit(call: Call, change: Any) -> Any:
    from polaris_spark.jobs.queue.history import commit_queue

    return commit_queue(call.session.catalog, change)


def _add_schedule(find: Find, call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.queue.changes import AddTask
    from polaris_spark.maintenance.queue.rows import Timing
    from polaris_spark.maintenance.queue.timing import check_timing

    name = arguments["name"]
    problem = problem_of(name)
    if problem is None and len(name.encode()) > MAX_NAME_BYTES:
        problem = f"is longer than {MAX_NAME_BYTES} bytes"
    if problem is not None:
        raise BadRequestError(f"the name of a schedule {name[:200]!a} {problem}")
    times = {key: duration_ms(key, arguments[key]) for key in ("every", "jitter") if key in arguments}
    timing = Timing(times.get("every", 0), arguments.get("cron", "").strip(), times.get("jitter", 0))
    check_timing(timing)
    task = new_task(find, call, arguments, origin="schedule", name=name, timing=timing, due_ms=0)
    session = call.session
    replace = arguments.get("replace", False)
    added = _commit(call, AddTask(session.connection.clock, session.operation(), task, replace=replace))
    return [_schedule_row(added)]


def _drop_schedule(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.jobs.queue.history import read_queue
    from polaris_spark.maintenance.queue.changes import DropSchedule

    name, session = arguments["name"], call.session
    try:
        if read_queue(session.catalog) is None:
            raise NotFoundError(f"there is no schedule {name!r}; the catalog has no schedules")
        _commit(call, DropSchedule(session.connection.clock, session.operation(), name))
    except NotFoundError:
        if not arguments.get("if_exists", False):
            raise
        return [(name, False)]
    return [(name, True)]


def _show_schedules(call: Call, _: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    found = sorted(
        _tasks(call, "schedule", "policy"), key=lambda task: (task.origin != "schedule", task.name)
    )
    return [_schedule_row(task) for task in found]


def _enqueue(find: Find, call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.queue.changes import ONCE, AddTask
    from polaris_spark.maintenance.queue.timing import check_duration

    session = call.session
    delay = duration_ms("delay", arguments["delay"]) if "delay" in arguments else 0
    check_duration("delay", delay)
    due = session.connection.clock.now_ms() + delay if delay else 0
    task = new_task(find, call, arguments, origin="task", name="", timing=ONCE, due_ms=due)
    id = _operation_id(session, arguments.get("operation"))
    change = AddTask(
        session.connection.clock,
        session.operation(),
        task,
        id=id.bytes,
        lifetime_ms=session.properties.idempotency_key_lifetime,
    )
    try:
        try:
            added = _commit(call, change)
        except OutcomeUnknownError:
            added = _commit(call, change)  # find out, and add the task if it was not added
    except OutcomeUnknownError as error:
        if "operation" in arguments:  # the caller knows the id
            raise
        raise OutcomeUnknownError(
            f"{error}; call enqueue again with the argument operation => '{id}', which adds the task at most once"
        ) from error
    return [_task_row(added)]


def _operation_id(session: Session, text: str | None) -> uuid.UUID:
    """Return the id of a call: the given one, or else a new one.

    Raises:
        InputError: the text is not a UUID of version 7.
    """
    if text is None:
        from polaris_spark.commits.change import new_operation_id

        return uuid.UUID(bytes=new_operation_id(session.connection.clock.now_ms()))
    try:
        found = uuid.UUID(text)
    except ValueError:
        found = None
    if found is None or found.version != 7:
        raise InputError(f"operation is {text[:80]!r}; it must be a UUID of version 7")
    return found


def _show_tasks(call: Call, _: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    return [_task_row(task) for task in _tasks(call, "task")]


def _retry_task(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.queue.changes import RetryTask

    session, id = call.session, _id(call, arguments)
    return [_task_row(_commit(call, RetryTask(session.connection.clock, session.operation(), id)))]


def _drop_task(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.queue.changes import DropTask

    session, id = call.session, _id(call, arguments)
    return [_task_row(_commit(call, DropTask(session.connection.clock, session.operation(), id)))]


def _id(call: Call, arguments: Mapping[str, Any]) -> int:
    """Return the argument `id`. The task must exist, so that no queue is created for a wrong id."""
    text = arguments["id"]
    found = next((task.id for task in _tasks(call, "task") if f"{task.id:x}" == text.strip().lower()), None)
    if found is None:
        raise NotFoundError(f"there is no task {text[:40]!r} in the queue")
    return found


def _tasks(call: Call, *origins: str) -> list[QueuedTask]:
    from polaris_spark.jobs.queue.history import read_queue
    from polaris_spark.maintenance.queue.changes import all_tasks

    state = read_queue(call.session.catalog)
    return [] if state is None else [task for task in all_tasks(state) if task.origin in origins]


def state_of(task: QueuedTask) -> str:
    """Return `failed`, `running` or `waiting`; or `ended` for a task that is no longer in the queue."""
    if not task.created_ms:
        return "ended"
    return "failed" if task.has_failed else "waiting" if task.lease is None else "running"


def _schedule_row(task: QueuedTask) -> tuple[Any, ...]:
    from polaris_spark.jobs.queue.values import time_of

    timing = task.timing
    return (
        task.name,
        task.origin,
        task.procedure,
        task.arguments.decode(),
        timing.cron or f"every {duration_text(timing.every_ms)}",
        duration_text(timing.jitter_ms) if timing.jitter_ms else None,
        time_of(task.next_ms if task.lease is None else task.due_ms),
        state_of(task),
        task.principal or None,
        task.error or None,
    )


def _task_row(task: QueuedTask) -> tuple[Any, ...]:
    from polaris_spark.jobs.queue.values import time_of

    return (
        f"{task.id:x}",
        task.procedure,
        task.arguments.decode(),
        state_of(task),
        task.attempt,
        task.attempts,
        time_of(task.next_ms) if state_of(task) == "waiting" else None,
        None if task.lease is None else task.lease.holder,
        task.principal or None,
        time_of(task.created_ms) if task.created_ms else None,
        task.error or None,
    )


_MAINTAINS = (
    Need("CATALOG_MAINTAIN", On.CATALOG),
    Need("", On.OWN, why="what the named procedure needs"),
)
_READS = (Need("CATALOG_READ_LOG", On.CATALOG),)
_PROCEDURE = Parameter("procedure", "STRING", "name of the procedure", required=True)
_ARGUMENTS = Parameter(
    "arguments",
    "MAP<STRING,STRING>",
    "arguments of the procedure by name, as texts",
    takes_variables=False,
)
_ATTEMPTS = Parameter(
    "attempts", "INT", f"number of attempts before a run counts as failed; default {DEFAULT_ATTEMPTS}"
)
_ID = Parameter("id", "STRING", "id of the task", required=True)
_SCHEDULE_COLUMNS = columns(
    "name STRING, origin STRING, procedure STRING, arguments STRING, due STRING, jitter STRING, "
    "next TIMESTAMP, state STRING, principal STRING, error STRING"
)
_TASK_COLUMNS = columns(
    "id STRING, procedure STRING, arguments STRING, state STRING, attempt INT, attempts INT, "
    "next TIMESTAMP, holder STRING, principal STRING, created TIMESTAMP, error STRING"
)

DROP_SCHEDULE = Procedure(
    name="drop_schedule",
    comment="Drop a schedule. A run in progress is asked to stop.",
    parameters=(Parameter("name", "STRING", "name of the schedule", required=True), IF_EXISTS),
    columns=columns("name STRING, dropped BOOLEAN"),
    run=_drop_schedule,
    over_http=True,
    needs=(Need("CATALOG_MAINTAIN", On.CATALOG),),
)
SHOW_SCHEDULES = Procedure(
    name="show_schedules",
    comment="List the schedules of the catalog, and what its policies let workers do.",
    parameters=(),
    columns=_SCHEDULE_COLUMNS,
    run=_show_schedules,
    over_http=True,
    only_reads=True,
    needs=_READS,
)
SHOW_QUEUE = Procedure(
    name="show_queue",
    comment="List the tasks that wait, run or have failed. Tasks that have succeeded are in the history of runs only.",
    parameters=(),
    columns=_TASK_COLUMNS,
    run=_show_tasks,
    over_http=True,
    only_reads=True,
    needs=_READS,
)
RETRY_TASK = Procedure(
    name="retry_task",
    comment="Let a task that has failed, or that waits for its next attempt, run at once.",
    parameters=(_ID,),
    columns=_TASK_COLUMNS,
    run=_retry_task,
    over_http=True,
    needs=(Need("CATALOG_MAINTAIN", On.CATALOG),),
)
DROP_TASK = Procedure(
    name="drop_task",
    comment="Remove a task from the queue. A run in progress is asked to stop.",
    parameters=(_ID,),
    columns=_TASK_COLUMNS,
    run=_drop_task,
    over_http=True,
    needs=(Need("CATALOG_MAINTAIN", On.CATALOG),),
)


def adding(find: Find) -> tuple[Procedure, Procedure]:
    """Return the procedures `add_schedule` and `enqueue`, which add tasks that run other procedures.

    Args:
        find: finds a procedure that a task runs, by its name.
    """
    add_schedule = Procedure(
        name="add_schedule",
        comment="Let workers run a procedure at an interval, or at the times of a cron expression.",
        parameters=(
            Parameter("name", "STRING", "name of the schedule", required=True),
            _PROCEDURE,
            _ARGUMENTS,
            Parameter("every", "STRING", "interval, such as '6 h'"),
            Parameter("cron", "STRING", "times as a cron expression in UTC, such as '30 2 * * *'"),
            Parameter("jitter", "STRING", "longest random delay of each run, such as '10 min'"),
            _ATTEMPTS,
            Parameter("replace", "BOOLEAN", "whether to replace a schedule of the same name"),
        ),
        columns=_SCHEDULE_COLUMNS,
        run=partial(_add_schedule, find),
        over_http=True,
        needs=_MAINTAINS,
    )
    enqueue = Procedure(
        name="enqueue",
        comment="Let a worker run a procedure once.",
        parameters=(
            _PROCEDURE,
            _ARGUMENTS,
            Parameter("delay", "STRING", "time before the first attempt, such as '10 min'"),
            _ATTEMPTS,
            Parameter(
                "operation",
                "STRING",
                "UUID of version 7 that identifies this call: calls with the same one add one task",
            ),
        ),
        columns=_TASK_COLUMNS,
        run=partial(_enqueue, find),
        over_http=True,
        needs=_MAINTAINS,
    )
    return add_schedule, enqueue
