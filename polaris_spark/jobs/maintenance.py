"""Maintenance jobs: procedures that report progress. Only one job of a kind runs at a time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

from polaris_spark.clock import Zone, iso_time_ms
from polaris_spark.errors import ClockError, InputError
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure, Run
from polaris_spark.property_values import duration_ms

if TYPE_CHECKING:
    from polaris_spark.maintenance.sweep_roots import Policy
    from polaris_spark.rest.session import Session

Scope = Literal["store", "realm", "catalog"]
"""The part of a store within which only one job of a kind runs at a time."""

STORE = "store"
"""Scope of tasks that affect the whole store."""

log = logging.getLogger(__name__)

Deletes = Callable[[Mapping[str, Any]], bool]
"""A function that returns whether a call of a job with these arguments deletes anything."""

_RIGHT = Parameter(
    "clock_is_right",
    "BOOLEAN",
    "this machine's clock is known to be right, although the newest time in the store is old",
)
_WAIT = Parameter("wait", "BOOLEAN", "wait while another process runs this job, instead of failing")


def job(
    *,
    name: str,
    comment: str,
    parameters: tuple[Parameter, ...],
    columns: tuple[Column, ...],
    run: Run,
    scope: Scope = "realm",
    deletes: Deletes | None = None,
    finds_faults: bool = False,
    idle: Callable[[tuple[Any, ...]], bool] | None = None,
    over_http: bool = False,
) -> Procedure:
    """Return a procedure that runs as a coordinated task with its name.

    Args:
        name: name of the procedure, and kind of its task in the view `tasks`.
        parameters: parameters in addition to `wait`, which every job has.
        run: runs the job. It must call `Call.progress` often, which raises an error if the task's lease is lost.
        scope: scope within which one job of this kind runs at a time.
        deletes: given for jobs that delete old or dropped data. Such a job has the parameter `clock_is_right`. A call
            that deletes is refused if the store does not trust the clock; a dry run only logs a warning.
        finds_faults: whether the rows are faults. If so, the command line exits with a failure if there are rows.
        idle: returns whether a row only reports that there was nothing to do.
        over_http: as `Procedure.over_http`.
    Raises:
        InputError: a name or type cannot be used.
    """

    def run_alone(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
        from polaris_spark.system.tasks import Tasks

        given = {name: value for name, value in arguments.items() if name not in (_WAIT.name, _RIGHT.name)}
        session = call.session
        if deletes is not None:
            _check_clock(
                session,
                deletes=deletes(given),
                clock_is_right=bool(arguments.get(_RIGHT.name, False)),
            )
        tasks = Tasks(session.connection.backend, session.connection.clock)

        def waiting() -> None:
            call.progress(f"waiting for another run of {name} to end")

        with tasks.running(
            name, task_scope(session, scope), waiting=waiting if arguments.get(_WAIT.name) else None
        ) as held:
            call.held = held
            try:
                return list(run(call, given))
            finally:
                call.held = None

    return Procedure(
        name=name,
        parameters=(*parameters, *((_RIGHT,) if deletes is not None else ()), _WAIT),
        columns=columns,
        run=run_alone,
        comment=comment,
        uses_spark=True,
        over_http=over_http,
        maintenance=True,
        finds_faults=finds_faults,
        idle=idle,
    )


def unless_dry_run(arguments: Mapping[str, Any]) -> bool:
    """Return False for a dry run, and otherwise True: a `Deletes` for jobs that delete unless `dry_run` is true."""
    return not arguments.get("dry_run", False)


def _check_clock(session: Session, *, deletes: bool, clock_is_right: bool) -> None:
    """Refuse a job that deletes, if the store does not trust the clock. For other jobs, log a warning.

    This check comes before the job acquires a node lease or writes.

    Raises:
        ClockError: the job deletes, and the clock is wrong or not trusted.
    """
    clock = session.connection.store_clock
    if deletes:
        clock.refuse_deleting(clock_is_right=clock_is_right)
        return
    try:
        doubt = clock.doubt()
    except ClockError as error:
        doubt = str(error)
    if doubt is not None:
        log.warning("this dry run uses a clock with which deletions would be refused: %s", doubt)


def task_scope(session: Session, scope: Scope) -> str:
    """Return the name of a task's scope: the store, a realm's instance id, or this id and a catalog's id."""
    if scope == "store":
        return STORE
    realm = session.catalog.references.store.realm
    return realm if scope == "realm" else f"{realm}/{session.catalog.row.entity_id:x}"


def policy_of(call: Call, arguments: Mapping[str, Any]) -> Policy:
    """Return the retention of history and the grace period of unreachable rows in the realm.

    Both come from the arguments `retention` and `grace`, or else from the session's properties. For a catalog whose own
    properties set longer periods, the longer periods hold.

    Raises:
        InputError: an argument is not a duration, or the retention is shorter than a period that relies on history.
    """
    from polaris_spark.maintenance.periods import realm_policy
    from polaris_spark.maintenance.trim import check_retention

    given = {name: duration_ms(name, arguments[name]) for name in ("retention", "grace") if name in arguments}
    policy = realm_policy(
        call.session.catalog, retention_ms=given.get("retention"), grace_ms=given.get("grace")
    )
    check_retention(
        policy.retention_ms,
        grace_ms=policy.grace_ms,
        operation_lifetime_ms=call.session.properties.idempotency_key_lifetime,
    )
    return policy


OLDER_THAN = "older than a time, or than a duration before now"
"""Meaning of the parameter `older_than`, in the descriptions of all jobs that have it."""


def older_than(call: Call, arguments: Mapping[str, Any], now_ms: int) -> int | None:
    """Return the argument `older_than` as a time in milliseconds since 1970; None if it was not given.

    A time without a zone is in the Spark session's time zone, as Spark writes a TIMESTAMP. Without Spark, it is in UTC.

    Raises:
        InputError: the argument is neither a time nor a duration.
    """
    text = arguments.get("older_than")
    return None if text is None else time_before_ms("older_than", text, now_ms, lambda: _zone(call))


def time_before_ms(name: str, text: str, now_ms: int, zone: Zone = lambda: timezone.utc) -> int:
    """Return the time that a text stands for, in milliseconds since 1970.

    Args:
        name: name of the argument, for errors.
        text: a time in ISO 8601, or a duration, which stands for a time this long before now.
        now_ms: current time in milliseconds since 1970.
        zone: returns the time zone for a time without a zone.
    Raises:
        InputError: the text is neither a time nor a duration.
    """
    with contextlib.suppress(InputError):
        return now_ms - duration_ms(name, text)
    try:
        return iso_time_ms(text, zone)
    except ValueError:
        raise InputError(
            f"{name} is {text!r}; write a time in ISO 8601 such as 2026-01-31T12:00:00Z, or a duration with its "
            "unit, which is subtracted from now, such as '5 d'"
        ) from None


def _zone(call: Call) -> tzinfo:
    name = call.spark().conf.get("spark.sql.session.timeZone") if call.has_spark else None
    if name in (None, "Z"):
        return timezone.utc
    try:
        return ZoneInfo(str(name))
    except (ValueError, KeyError):
        pass
    try:  # an offset, such as +02:00
        return timezone(timedelta(milliseconds=-iso_time_ms(f"1970-01-01T00:00:00{name}")))
    except ValueError:
        raise InputError(
            f"the session's time zone, {name!r}, is unknown: write times with their zones, such as 2026-01-31T12:00:00Z"
        ) from None
