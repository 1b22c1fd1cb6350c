"""Maintenance jobs. They are procedures that report progress. Only one job of each kind runs at a time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

from polaris_spark.access.needs import Need, Needs, On
from polaris_spark.clock import Zone, iso_time_ms
from polaris_spark.errors import BadRequestError, ClockError, InputError
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure, Run
from polaris_spark.property_values import duration_ms

if TYPE_CHECKING:
    from polaris_spark.maintenance.periods import Policy
    from polaris_spark.rest.session import Session

Scope = Literal["store", "realm", "catalog"]
"""The part of a store within which only one job of a kind runs at a time."""

STORE = "store"
"""Name of the scope of tasks that affect the whole store."""

log = logging.getLogger(__name__)

Deletes = Callable[[Mapping[str, Any]], bool]
"""A function that takes the arguments of a call of a job, and returns whether the call deletes data."""

_RIGHT = Parameter(
    "clock_is_right",
    "BOOLEAN",
    "confirms that this machine's clock is right, although the newest time in the store is old",
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
    needs: Needs = (),
) -> Procedure:
    """Return a procedure that holds the lease of a task while it runs. The kind of the task is the procedure's name.

    Args:
        name: name of the procedure, and kind of its task in the view `tasks`.
        parameters: parameters in addition to `wait`, which every job has.
        run: runs the job. It must call `Call.progress` often, which raises an error if the task's lease is lost.
        scope: scope within which one job of this kind runs at a time.
        deletes: returns whether a call with given arguments deletes old or dropped data; None if the job never does.
            If it is not None, the job has the parameter `clock_is_right`. If this machine's clock is wrong or
            in doubt, a call that deletes is then refused, and any other call, such as a dry run, only logs a warning.
        finds_faults: whether each row of the result reports a fault. If so, the command line exits with a failure
            status when there are rows.
        idle: returns whether a row of the result only reports that there was nothing to do.
        over_http: whether HTTP clients may call the job (see `Procedure.over_http`).
        needs: what a caller needs in a realm with access control. By default, the privilege to maintain the catalog or
            the realm.
    Raises:
        InputError: a name, type or order of the parameters or columns is not allowed (see `Procedure`).
    """
    return Procedure(
        name=name,
        parameters=(*parameters, *((_RIGHT,) if deletes is not None else ()), _WAIT),
        columns=columns,
        run=_alone(name, _recorded(name, columns, run, deletes), scope, deletes),
        comment=comment,
        uses_spark=True,
        over_http=over_http,
        maintenance=True,
        needs=needs or (Need("CATALOG_MAINTAIN", On.CATALOG if scope == "catalog" else On.REALM),),
        finds_faults=finds_faults,
        idle=idle,
    )


def _alone(name: str, run: Run, scope: Scope, deletes: Deletes | None) -> Run:
    """Return a function that runs a job while it holds the lease of the job's task. The arguments are as in `job`."""

    def run_alone(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
        from polaris_spark.system.tasks import Tasks

        given = {name: value for name, value in arguments.items() if name not in (_WAIT.name, _RIGHT.name)}
        session = call.session
        if deletes is not None:
            if deletes(given) and session.catalog.in_transaction:
                raise BadRequestError(
                    f"{name} cannot be part of a transaction, because a rollback could not restore what it deletes; "
                    "commit the transaction or roll it back first"
                )
            clock_is_right = bool(arguments.get(_RIGHT.name, False))
            _check_clock(session, deletes=deletes(given), clock_is_right=clock_is_right)
        tasks = Tasks(session.connection.backend, session.connection.clock)

        def waiting() -> None:
            call.progress(f"waiting for another run of {name} to end")

        # HTTP clients reach only their own realm, so a job that deletes nothing need not wait for other realms.
        own = "realm" if scope == "store" and call.over_http and deletes is None else scope
        with tasks.running(
            name, task_scope(session, own), waiting=waiting if arguments.get(_WAIT.name) else None
        ) as held:
            call.held = held
            try:
                return list(run(call, given))
            finally:
                call.held = None

    return run_alone


def _recorded(name: str, columns: tuple[Column, ...], run: Run, deletes: Deletes | None) -> Run:
    """Return a function that runs a job and adds the run to the history of the catalog, unless it is a dry run. The
    arguments are as in `job`."""

    def run_recorded(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
        from polaris_spark.jobs.queue.history import record_run

        if deletes is not None and not deletes(arguments):
            return run(call, arguments)
        started = call.session.connection.clock.now_ms()
        try:
            rows = list(run(call, arguments))
        except Exception as error:
            record_run(call, name, columns, arguments, started, error)
            raise
        record_run(call, name, columns, arguments, started, rows)
        return rows

    return run_recorded


def unless_dry_run(arguments: Mapping[str, Any]) -> bool:
    """Return whether a call deletes data, for jobs that delete unless the argument `dry_run` is true."""
    return not arguments.get("dry_run", False)


def _check_clock(session: Session, *, deletes: bool, clock_is_right: bool) -> None:
    """Refuse a call that deletes data if this machine's clock is wrong or in doubt. For other calls, log a warning.

    This check comes before the job acquires a node lease or writes.

    Raises:
        ClockError: the call deletes data, and the clock is wrong or in doubt.
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
        log.warning(
            "this call deletes nothing; with this machine's clock, a call that deletes would be refused: %s",
            doubt,
        )


def task_scope(session: Session, scope: Scope) -> str:
    """Return the name of a scope: `store`, `<instance id of the realm>`, or `<instance id>/<id of the catalog>`."""
    if scope == "store":
        return STORE
    realm = session.catalog.references.store.realm
    return realm if scope == "realm" else f"{realm}/{session.catalog.row.entity_id:x}"


def policy_of(call: Call, arguments: Mapping[str, Any]) -> Policy:
    """Return the retention of history and the grace period of unreachable rows in the realm.

    They come from the arguments `retention` and `grace` or, by default, from the properties of the session. If the
    properties of another catalog set longer periods, the longer periods apply to that catalog.

    Raises:
        InputError: an argument is not a duration, or the retention is shorter than the grace period or the lifetime of
            idempotency keys.
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
"""Part of the description of the parameter `older_than`, for all jobs that have this parameter."""


def older_than(call: Call, arguments: Mapping[str, Any], now_ms: int) -> int | None:
    """Return the argument `older_than` as a time in milliseconds since 1970 UTC; None if it was not given.

    A time without a zone is in the time zone of the Spark session or, without Spark, in UTC.

    Raises:
        InputError: the argument is neither a time nor a duration.
    """
    text = arguments.get("older_than")
    return None if text is None else time_before_ms("older_than", text, now_ms, lambda: _zone(call))


def time_before_ms(name: str, text: str, now_ms: int, zone: Zone = lambda: timezone.utc) -> int:
    """Parse an argument that is a time or a duration before now. Return the time in milliseconds since 1970 UTC.

    Args:
        name: name of the argument for the error message.
        text: a time in ISO 8601, or a duration that is subtracted from now.
        now_ms: current time in milliseconds since 1970 UTC.
        zone: returns the time zone of a time that is written without a zone.
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
