"""The history of runs of procedures, as rows of a catalog's queue."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import InputError, PolarisError, ReferenceGoneError
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure, columns
from polaris_spark.secret_options import REFERENCE, is_secret

if TYPE_CHECKING:
    from polaris_spark.catalog.catalogs.catalog import Catalog
    from polaris_spark.commits.state import State
    from polaris_spark.maintenance.queue.changes import QueueChange
    from polaris_spark.maintenance.queue.rows import RunRecord

log = logging.getLogger(__name__)

MAX_ARGUMENTS = 4_096
"""Maximum length of the arguments in the history, in characters."""

_DEFAULT_LIMIT = 100


def read_queue(catalog: Catalog) -> State | None:
    """Return the newest state of a catalog's queue; None if the catalog has none."""
    from polaris_spark.commits.state import reading_state
    from polaris_spark.maintenance.queue.rows import queue_reference

    try:
        return reading_state(catalog.references.read(queue_reference(catalog.row)))
    except ReferenceGoneError:
        return None


def commit_queue(catalog: Catalog, change: QueueChange[Any]) -> Any:
    """Commit a change of a catalog's queue, and return its result. The queue is created if the catalog has none."""
    from polaris_spark.catalog.catalogs.catalogs import ensure_reference
    from polaris_spark.maintenance.queue.rows import queue_reference

    name = queue_reference(catalog.row)
    ensure_reference(catalog.references, name, change.operation)
    return catalog.references.commit(name, change)


def kept_ms(catalog: Catalog) -> int:
    """Return the time for which runs of a catalog stay in the history, in milliseconds: its `history-retention`."""
    from polaris_spark.maintenance.periods import own_policy

    return own_policy(catalog).retention_ms


def begins_history(call: Call) -> bool:
    """Whether this process must record the run of a job: the catalog has a queue, and no worker records the run."""
    from polaris_spark.maintenance.queue.rows import queue_reference

    if call.is_recorded or call.may_end_realm:
        return False
    catalog = call.session.catalog
    found = catalog.references.lookup(queue_reference(catalog.row))
    return found is not None and found.registration.state == "live"


def record_run(
    call: Call,
    procedure: str,
    columns: Sequence[Column],
    arguments: Mapping[str, Any],
    started_ms: int,
    result: list[tuple[Any, ...]] | BaseException,
) -> None:
    """Record a run of a job by a caller. If this fails, log a warning: the job itself has ended."""
    from polaris_spark.maintenance.queue.changes import AddRun
    from polaris_spark.maintenance.queue.rows import RunRecord
    from polaris_spark.store.references import new_version
    from polaris_spark.system.clocks import process_name

    session, clock = call.session, call.session.connection.clock
    try:
        if not begins_history(call):
            return
        failed = isinstance(result, BaseException)
        run = RunRecord(
            new_version(),
            procedure,
            arguments_text(arguments),
            session.catalog.branch,
            "user",
            "",
            1,
            session.principal,
            process_name(),
            started_ms,
            clock.now_ms(),
            "failed" if failed else "succeeded",
            error_text(result, arguments) if isinstance(result, BaseException) else "",
            {} if isinstance(result, BaseException) else statistics_of(columns, result),
        )
        change = AddRun(clock, session.operation(), run, keep_ms=kept_ms(session.catalog))
        commit_queue(session.catalog, change)
    except PolarisError as error:
        log.warning("the run of %s was not recorded: %s", procedure, error)


def statistics_of(columns: Sequence[Column], rows: Sequence[tuple[Any, ...]]) -> dict[str, int]:
    """Return the number of rows of a result, and the sum of each column of whole numbers unless it is 0."""
    found = {"rows": len(rows)}
    for index, column in enumerate(columns):
        if column.type in ("INT", "BIGINT"):
            total = sum(row[index] or 0 for row in rows)
            if total:
                found[column.name] = max(-(2**63), min(total, 2**63 - 1))
    return found


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON text for the history. `***` replaces secrets."""
    shown = {name: _shown(name, value) for name, value in arguments.items()}
    return json.dumps(shown, ensure_ascii=False, default=str)[:MAX_ARGUMENTS]


def error_text(error: BaseException, arguments: Mapping[str, Any]) -> str:
    """Return the message of an error of a run for the history. `***` replaces secrets of its arguments, and the values
    of environment variables that they name."""
    from polaris_spark.maintenance.queue.changes import MAX_ERROR

    text = str(error) if isinstance(error, PolarisError) else f"{type(error).__name__}: {error}"
    for secret in sorted(_secrets(arguments), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text[:MAX_ERROR] or type(error).__name__


def _secrets(arguments: Mapping[str, Any]) -> Iterator[str]:
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            yield from _secrets(value)
        elif isinstance(value, str) and value.startswith(REFERENCE):
            yield from filter(None, [os.environ.get(value.removeprefix(REFERENCE))])
        elif isinstance(value, str) and is_secret(name, value):
            yield value
            account = value.partition("//")[2].rpartition("@")[0]  # of a URI: user:password
            yield from filter(None, [account.partition(":")[2]])


def secret_in(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of an argument, or of an option in an argument, whose value is a secret; None if there is none.
    Names of environment variables are not secrets."""
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            found: str | None = next((key for key, text in value.items() if is_secret(key, text or "")), None)
            if found is not None and not str(value[found]).startswith("env:"):
                return found
        elif isinstance(value, str) and is_secret(name, value) and not value.startswith("env:"):
            return name
    return None


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _shown(key, text) for key, text in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(name, one) for one in value]
    if isinstance(value, str) and not value.startswith("env:") and is_secret(name, value):
        return "***"
    return value


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.queue.changes import all_runs
    from polaris_spark.maintenance.queue.rows import Outcome

    limit = arguments.get("limit", _DEFAULT_LIMIT)
    if limit < 1:
        raise InputError(f"limit is {limit}; it must be at least 1")
    outcome, known = arguments.get("outcome"), get_args(Outcome)
    if outcome is not None and outcome not in known:
        raise InputError(f"outcome is {outcome[:80]!r}; it must be one of: {', '.join(known)}")
    wanted = {name: arguments[name] for name in ("procedure", "outcome", "principal") if name in arguments}
    state = read_queue(call.session.catalog)
    if state is None:
        return []
    found = all_runs(
        state, limit, lambda run: all(getattr(run, name) == text for name, text in wanted.items())
    )
    return [_row(run) for run in found]


def _row(run: RunRecord) -> tuple[Any, ...]:
    from polaris_spark.jobs.queue.values import time_of

    return (
        run.procedure,
        run.arguments,
        run.origin,
        run.name or None,
        run.attempt,
        run.principal or None,
        run.holder,
        time_of(run.started_ms),
        time_of(run.ended_ms),
        run.outcome,
        run.error or None,
        {name: str(number) for name, number in run.statistics.items()},
    )


SHOW_RUNS = Procedure(
    name="show_runs",
    comment="List the newest runs of jobs, schedules, tasks and policies in the catalog, the newest first.",
    parameters=(
        Parameter("procedure", "STRING", "only runs of this procedure"),
        Parameter("outcome", "STRING", "only runs with this outcome: succeeded, failed, cancelled or lost"),
        Parameter("principal", "STRING", "only runs of this principal"),
        Parameter("limit", "INT", f"maximum number of runs; default {_DEFAULT_LIMIT}"),
    ),
    columns=columns(
        "procedure STRING, arguments STRING, origin STRING, name STRING, attempt INT, principal STRING, "
        "holder STRING, started TIMESTAMP, ended TIMESTAMP, outcome STRING, error STRING, "
        "statistics MAP<STRING,STRING>"
    ),
    run=_run,
    over_http=True,
    only_reads=True,
    needs=(Need("CATALOG_READ_LOG", On.CATALOG),),
)
