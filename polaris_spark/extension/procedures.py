"""Routes of procedures and their runs.

If a local caller calls a procedure and sets no limit on the wait, the procedure runs on the thread of the request. A
local caller can also give the procedure a Spark session. An HTTP client starts a run in the background, requests its
progress, and reads its result in pages.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import OPEN, Need, On
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.errors import (
    BadRequestError,
    ForbiddenError,
    InputError,
    NotFoundError,
    RequestTooLargeError,
)
from polaris_spark.extension.messages import (
    CallRequest,
    Column,
    Parameter,
    Procedure,
    ProceduresResponse,
    RunResponse,
    RunsResponse,
)
from polaris_spark.extension.runs import (
    MAX_KEPT,
    MAX_PAGE_ROWS,
    MAX_RESULT_CHARACTERS,
    Run,
    Runs,
    encoded,
    failure,
    run_id,
)
from polaris_spark.rest.access import Role
from polaris_spark.rest.messages import decode, encode
from polaris_spark.rest.request import NO_CONTENT, Request, Response, json_response
from polaris_spark.rest.router import EXTENSION, Route
from polaris_spark.rest.session import Session

if TYPE_CHECKING:
    from polaris_spark.jobs import procedure as jobs

MAX_WAIT_SECONDS = 10.0
"""Maximum time that an HTTP request waits for the end of a run, in seconds. A waiting request occupies a thread of the
server."""


def list_procedures(_catalog: Catalog, _request: Request) -> Response:
    """Answer `GET procedures`: describe all procedures."""
    from polaris_spark.jobs.registry import procedures

    listed = [
        Procedure(
            one.name,
            one.comment,
            one.uses_spark,
            one.over_http,
            one.switches,
            [Parameter(p.name, p.type, p.comment, p.required) for p in one.parameters],
            [Column(*column) for column in one.columns],
        )
        for one in procedures().values()
    ]
    return json_response(encode(ProceduresResponse(listed)))


def call_procedure(_: Catalog, request: Request) -> Response:
    """Answer `POST procedures/{procedure}`: start a run of the procedure, and wait for its end as long as requested."""
    from polaris_spark.jobs.driver import Driver
    from polaris_spark.jobs.procedure import Call
    from polaris_spark.jobs.registry import find

    caller = request.caller
    try:
        procedure = find(request.params["procedure"])
    except InputError as error:
        raise NotFoundError(str(error)) from None
    asked = decode(request.body, CallRequest)
    session = _session_for(request, procedure, asked)
    arguments = procedure.checked_arguments(_decoded(procedure, asked.arguments or {}))
    wait = _seconds(asked.wait_seconds)
    now = session.connection.clock.now_ms()
    id = request.headers.get("idempotency-key") if asked.id is None else asked.id
    run = Run(run_id(id), procedure, caller.principal, now, caller.roles)
    driver = (
        None if asked.driver is None else Driver(asked.driver.call, asked.driver.port, asked.driver.secret)
    )
    call = Call(
        session,
        None if driver is None else driver.session,
        run.watch,
        over_http=not caller.is_local,
        answers_spark=driver is not None,
    )
    procedure.check_values(call, arguments)
    run.bind(call)
    runs = session.resource(Runs)

    def rows() -> list[tuple[Any, ...]]:
        try:
            return procedure.rows(call, arguments)
        finally:
            if driver is not None:
                driver.release()

    if wait is None and caller.is_local:
        with runs.foreground(run):
            return _result(run, rows)
    begun = runs.begin(run, rows)
    if begun is run:  # repeated requests do not wait, so at most one thread waits for each run
        begun.ended.wait((wait or 0.0) if caller.is_local else min(wait or 0.0, MAX_WAIT_SECONDS))
    if begun.failure is not None:
        return begun.failure
    return json_response(begun.page(0, MAX_PAGE_ROWS), 200 if begun.ended.is_set() else 202)


def _session_for(request: Request, procedure: jobs.Procedure, asked: CallRequest) -> Session:
    """Return the session in which a procedure runs for a caller.

    Raises:
        ForbiddenError: the caller is an HTTP client, and the call is not allowed over HTTP.
    """
    caller, session = request.caller, _session(request)
    if caller.is_local:
        return session if request.notes == session.notes else session.derive(notes=request.notes)
    if not procedure.over_http:
        raise ForbiddenError(
            f"procedure {procedure.name} cannot be called over HTTP, because it may access catalogs and locations "
            "other than those of the server; call it in a process that opens the catalog itself, or by the command "
            "polaris-spark with STORE"
        )
    if asked.driver is not None:
        raise ForbiddenError("'driver' can be given only in the process that opened the catalog")
    session = session.derive(
        caller.principal, notes=request.notes, roles=caller.roles, is_verified=caller.is_verified
    )
    session.secret = caller.secret
    return session


def list_runs(_: Catalog, request: Request) -> Response:
    """Answer `GET runs`: describe the runs that the caller is allowed to see."""
    known = _session(request).resource(Runs).all()
    return json_response(encode(RunsResponse([one.described() for one in known if _is_own(request, one)])))


def get_run(_: Catalog, request: Request) -> Response:
    """Answer `GET runs/{run}`: return the run's status and one page of its result."""
    first = _number(request.query, "pageToken", 0, 2**31)
    most = _number(request.query, "pageSize", MAX_PAGE_ROWS, MAX_PAGE_ROWS)
    return json_response(_run(request).page(first, max(most, 1)))


def cancel_run(_: Catalog, request: Request) -> Response:
    """Answer `DELETE runs/{run}`: request that the run stops at its next step. A run that has ended is not changed."""
    _run(request).cancel()
    return NO_CONTENT


def _result(run: Run, rows: Any) -> Response:
    """Run a procedure on this thread, and return the response with the whole result or the error.

    A result can have millions of rows, so the response is joined from the JSON texts of the rows.
    """
    try:
        found = encoded(run.procedure, rows())
        characters = sum(map(len, found))
        if characters > MAX_RESULT_CHARACTERS:
            raise RequestTooLargeError(
                f"the result of {run.procedure.name} has {len(found)} rows with {characters} characters; at most "
                f"{MAX_RESULT_CHARACTERS} characters can be returned: request fewer rows. The changes that the "
                "procedure made remain"
            )
    except (Exception, SystemExit) as error:  # a procedure must not end a process that serves others
        return failure(run.procedure.name, error)
    columns = encode([Column(*one) for one in run.procedure.columns])
    return json_response(f'{{"columns":{columns},"rows":[{",".join(found)}]}}')


def _decoded(procedure: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments, converted from JSON to Python values. An argument that the procedure does not have is
    returned unchanged; `checked_arguments` refuses it later.

    Raises:
        InputError: a value cannot be converted to the parameter's type.
    """
    from polaris_spark.jobs.types import TYPES

    types = {one.name: one.type for one in procedure.parameters}
    found = {}
    for name, value in arguments.items():
        try:
            found[name] = value if value is None or name not in types else TYPES[types[name]].decode(value)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"{procedure.name}: the argument {name!r} is {str(value)[:200]!r}; it must be {types[name]}"
            ) from None
    return found


def _seconds(given: float | None) -> float | None:
    if given is not None and not 0 <= given < math.inf:
        raise InputError(f"wait-seconds is {given}; it must be 0 or more")
    return given if given is None else min(given, threading.TIMEOUT_MAX)


def _number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise BadRequestError(f"{name} is {text[:80]!r}; it must be a whole number")
    return min(int(text), most)


def _session(request: Request) -> Session:
    assert isinstance(request.session, Session)  # every transport with these routes passes a session
    return request.session


def _run(request: Request) -> Run:
    """Return the run whose id is in the path of the request.

    Raises:
        NotFoundError: the run does not exist, or an HTTP client requested a run of another principal, or a run that
            used other roles than its own.
    """
    runs, id = _session(request).resource(Runs), request.params["run"]
    found = runs.find(id)
    if found is None or not _is_own(request, found):
        raise NotFoundError(
            f"there is no run {id[:80]!r} of this principal; only the newest {MAX_KEPT} ended runs of a catalog are "
            "kept"
        )
    return found


def _is_own(request: Request, run: Run) -> bool:
    """Return whether the caller is allowed to see and cancel a run. A local caller may see and cancel all runs; an HTTP
    client, only those runs of its principal that use no roles besides its own."""
    return request.caller.is_local or run.is_of(request.caller.principal, request.caller.roles)


ROUTES = (
    Route(
        "GET",
        "procedures",
        list_procedures,
        EXTENSION,
        Role.ADMINISTRATOR,
        result=ProceduresResponse,
        needs=OPEN,
    ),
    Route(
        "POST",
        "procedures/{procedure}",
        call_procedure,
        EXTENSION,
        Role.ADMINISTRATOR,
        body=CallRequest,
        result=RunResponse,
        needs=(Need("", On.PROCEDURE),),
    ),
    Route("GET", "runs", list_runs, EXTENSION, Role.ADMINISTRATOR, result=RunsResponse, needs=OPEN),
    Route(
        "GET",
        "runs/{run}",
        get_run,
        EXTENSION,
        Role.ADMINISTRATOR,
        result=RunResponse,
        query=("pageToken", "pageSize"),
        needs=OPEN,
    ),
    Route("DELETE", "runs/{run}", cancel_run, EXTENSION, Role.ADMINISTRATOR, needs=OPEN),
)
