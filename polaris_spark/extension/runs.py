"""Runs of procedures, and their results. A run in the foreground uses the thread of the request that started it. A run
in the background has its own thread."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from polaris_spark.errors import (
    AlreadyExistsError,
    InputError,
    PolarisError,
    RequestTooLargeError,
    TryAgainError,
)
from polaris_spark.extension.messages import Column, Progress, RunResponse
from polaris_spark.rest.errors import response_of
from polaris_spark.rest.messages import ErrorModel, ErrorResponse, decode, encode
from polaris_spark.rest.request import Response, json_response

if TYPE_CHECKING:
    from polaris_spark.jobs.procedure import Call, Procedure

log = logging.getLogger("polaris_spark")

MAX_RUNNING = 4
"""Maximum number of simultaneous runs in the background, in one process."""
MAX_KEPT = 64
"""Maximum number of ended runs that a session remembers."""
MAX_KEPT_BYTES = 64 * 2**20
"""Maximum total memory of the results that a session remembers, in bytes. The newest result is always kept. The same
limit applies to the result of each single run in the background."""
MAX_MESSAGE = 10_000
"""Maximum length of an error response that a session remembers unchanged, in characters. If a response is longer, its
message is shortened, because a message can contain an argument of any length."""
MAX_PAGE_ROWS = 10_000
"""Maximum number of rows in one page of a result."""
MAX_PAGE_CHARACTERS = 4 * 2**20
"""Size of a page of a result, in characters. A page ends with the row that reaches this size."""
MAX_RESULT_CHARACTERS = 2**28
"""Maximum size of a result that is returned in one response, in characters. It is limited because the JVM keeps the
whole response in one array of bytes."""
CLOSING_SECONDS = 30
"""Maximum time that closing a session waits for the end of its cancelled runs, in seconds."""

_SLOTS = threading.BoundedSemaphore(MAX_RUNNING)

RUNNING, SUCCEEDED, FAILED, CANCELLED = "running", "succeeded", "failed", "cancelled"


class Run:
    """A run of a procedure. Thread-safe."""

    def __init__(
        self,
        id: str,
        procedure: Procedure,
        principal: str,
        started_ms: int,
        roles: frozenset[str] | None = None,
    ) -> None:
        """
        Args:
            roles: names of the principal roles that the run uses; None for all that the principal has.
        """
        self.id = id
        self.roles = roles
        self.procedure = procedure
        self.principal = principal
        self.started_ms = started_ms
        self.status = RUNNING
        self.ended = threading.Event()
        self.ended_at = 0.0
        """Time at which the run ended, in seconds of the monotonic clock."""
        self.failure: Response | None = None
        """The response that describes why the run failed; None if it did not fail."""
        self.rows: list[str] = []
        """Each row of the result as JSON text."""
        self.size = 0
        """Memory of the result or of the error, in bytes."""
        self._progress: Progress | None = None
        self._call: Call | None = None
        self._is_cancelled = False

    def is_of(self, principal: str, roles: frozenset[str] | None) -> bool:
        """Whether the run belongs to a principal, and uses only the given roles (None: all roles that the principal
        has)."""
        return self.principal == principal and (
            roles is None or (self.roles is not None and self.roles <= roles)
        )

    def watch(self, step: str, done: int, total: int) -> None:
        """Record the progress of the run."""
        self._progress = Progress(step, done, total)

    def bind(self, call: Call) -> None:
        """Set the call that `cancel` cancels. Call this before other threads can find the run."""
        self._call = call

    def cancel(self) -> None:
        """Request that the run stops at its next step."""
        self._is_cancelled = True
        call = self._call
        if call is not None:
            call.cancel()

    def execute(self, action: Callable[[], list[tuple[Any, ...]]]) -> None:
        """Run the procedure on this thread, and keep its result or its error."""
        try:
            rows = encoded(self.procedure, action())
            self.size = sum(map(sys.getsizeof, rows))
            if self.size > MAX_KEPT_BYTES:
                raise RequestTooLargeError(
                    f"the {len(rows)} rows that {self.procedure.name} returned take {self.size} bytes of memory; at "
                    f"most {MAX_KEPT_BYTES} bytes can be kept: request fewer rows, or call the procedure in a process "
                    "that opens the catalog itself. The changes that the procedure made remain"
                )
            self.rows, self.status = rows, SUCCEEDED
        except (Exception, SystemExit) as error:  # a procedure must not end a process that serves others
            cancelled = self._is_cancelled and isinstance(error, TryAgainError)
            self.failure = _shortened(failure(self.procedure.name, error))
            self.size = sys.getsizeof(self.failure.body)
            self.status = CANCELLED if cancelled else FAILED
        finally:
            self.end()

    def end(self) -> None:
        """Record that the run has ended, and wake the threads that wait for its end."""
        self._call, self.ended_at = None, time.monotonic()
        self.ended.set()

    def described(self) -> RunResponse:
        """Return the description of the run, without the rows of its result."""
        status, failed = self.status, self.failure
        return RunResponse(
            self.id,
            self.procedure.name,
            self.principal,
            status,
            self.started_ms,
            progress=self._progress if status == RUNNING else None,
            error=None if failed is None else decode(failed.body, ErrorResponse).error,
        )

    def page(self, first: int, most: int) -> str:
        """Return the run as JSON text (`RunResponse`). If the run has succeeded, the text contains a page of the
        result: at most `most` rows, beginning with row number `first` (counted from 0)."""
        told = encode(self.described())
        if self.status != SUCCEEDED:
            return told
        last, characters = first, 0
        while last < len(self.rows) and last - first < most and characters < MAX_PAGE_CHARACTERS:
            characters += len(self.rows[last])
            last += 1
        columns = encode([Column(*one) for one in self.procedure.columns])
        token = f',"next-page-token":"{last}"' if last < len(self.rows) else ""
        return f'{told[:-1]},"columns":{columns},"rows":[{",".join(self.rows[first:last])}]{token}}}'


class Runs:
    """The runs of one session. Thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._guard = threading.Lock()
        self._is_closed = False

    @contextmanager
    def foreground(self, run: Run) -> Iterator[None]:
        """Register a run for the duration of a `with` block, so that other requests can find and cancel it.

        Raises:
            AlreadyExistsError: another run has this id.
        """
        with self._guard:
            if run.id in self._runs:
                raise AlreadyExistsError(f"there is already a run {run.id!r}; choose another id")
            self._runs[run.id] = run
        try:
            yield
        finally:
            run.end()
            with self._guard:
                self._runs.pop(run.id, None)

    def begin(self, run: Run, action: Callable[[], list[tuple[Any, ...]]]) -> Run:
        """Start a run in the background, and return it. If the same principal has already started a run of the same
        procedure with this id, return that run and start nothing.

        Raises:
            AlreadyExistsError: the id belongs to a run of another procedure or principal.
            TryAgainError: `MAX_RUNNING` runs are in progress in this process, the session is being closed, or the
                system cannot start a thread.
        """
        with self._guard:
            present = self._runs.get(run.id)
            if present is not None:
                if present.procedure.name != run.procedure.name or not present.is_of(
                    run.principal, run.roles
                ):
                    raise AlreadyExistsError(
                        f"the run {run.id!r} belongs to another procedure or principal; choose another id"
                    )
                return present
            if self._is_closed:
                raise TryAgainError("the catalog is being closed; no run was started")
            if not _SLOTS.acquire(blocking=False):
                raise TryAgainError(
                    f"{MAX_RUNNING} procedures are already running in the background, the maximum; no run was started"
                )
            self._runs[run.id] = run

        def work() -> None:
            try:
                run.execute(action)
            finally:
                _SLOTS.release()
                self._forget_oldest()

        try:
            threading.Thread(target=work, name=f"polaris-run-{run.procedure.name}", daemon=True).start()
        except RuntimeError:  # no more threads
            _SLOTS.release()
            with self._guard:
                del self._runs[run.id]
            raise TryAgainError("the system cannot start another thread; no run was started") from None
        return run

    def find(self, id: str) -> Run | None:
        """Return the run with this id; None if the run never existed or the session no longer remembers it."""
        with self._guard:
            return self._runs.get(id)

    def all(self) -> list[Run]:
        """Return all runs that the session remembers, in the order in which they were started."""
        with self._guard:
            return list(self._runs.values())

    def is_busy(self) -> bool:
        """Whether a run is in progress."""
        return any(not one.ended.is_set() for one in self.all())

    def close(self) -> None:
        """Refuse new runs, cancel all runs, and wait for their end for at most `CLOSING_SECONDS`."""
        with self._guard:
            self._is_closed = True
        running = [one for one in self.all() if not one.ended.is_set()]
        for one in running:
            one.cancel()
        until = time.monotonic() + CLOSING_SECONDS
        for one in running:
            if not one.ended.wait(max(until - time.monotonic(), 0.0)):
                log.warning(
                    "the run %s of %s has not ended after it was cancelled; its store is closed now, so it will fail",
                    one.id,
                    one.procedure.name,
                )

    def _forget_oldest(self) -> None:
        with self._guard:
            ended = [one for one in self._runs.values() if one.ended.is_set()]
            ended.sort(key=lambda one: one.ended_at)  # a long run can end after shorter runs that began later
            kept = sum(one.size for one in ended)
            for one in ended[:-1]:
                if len(ended) <= MAX_KEPT and kept <= MAX_KEPT_BYTES:
                    return
                del self._runs[one.id]
                ended = ended[1:]
                kept -= one.size


def run_id(text: str | None) -> str:
    """Return the id of a run: the client's id, or a new id if the client gave none.

    Raises:
        InputError: the client's id is empty, has more than 80 characters, or has characters other than letters, digits
            and dashes.
    """
    if text is None:
        return str(uuid.uuid4())
    if not (0 < len(text) <= 80 and text.isascii() and text.replace("-", "").isalnum()):
        raise InputError(f"the id of a run is {text[:80]!r}; it must be 1 to 80 letters, digits and dashes")
    return text


def encoded(procedure: Procedure, rows: list[tuple[Any, ...]]) -> list[str]:
    """Return each row of a result as JSON text: an array of the values of its columns."""
    from polaris_spark.jobs.types import TYPES

    encoders = [TYPES[column.type].encode for column in procedure.columns]
    dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    # A file name may not be valid Unicode. The escape makes it valid in JSON.
    return [
        dumps([None if v is None else encode(v) for encode, v in zip(encoders, row, strict=True)])
        .encode(errors="backslashreplace")
        .decode()
        for row in rows
    ]


def failure(name: str, error: BaseException) -> Response:
    """Return the error response for the procedure `name`, which failed with `error`."""
    if isinstance(error, PolarisError):
        return response_of(error)
    log.warning("procedure %s failed", name, exc_info=error)
    model = ErrorModel(f"{name} failed: {_message_of(error)}", "InternalServerError", 500)
    return json_response(encode(ErrorResponse(model)), 500)


def _shortened(failed: Response) -> Response:
    if len(failed.body) <= MAX_MESSAGE:
        return failed
    model = decode(failed.body, ErrorResponse).error
    model = ErrorModel(f"{model.message[: MAX_MESSAGE // 2]}...", model.type, model.code)
    return failed._replace(body=encode(ErrorResponse(model)))


def _message_of(error: BaseException) -> str:
    """Return the message of an unexpected error as one line, without stack traces. Spark's workers and Py4J put stack
    traces into messages."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    traced = next((i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")), None)
    if traced is not None:
        after = [line for line in lines[traced + 1 :] if line[0] not in " \t"]
        return after[0] if after else lines[0]
    named = lines[0] if lines else ""
    return f"{type(error).__name__}: {named}" if named else type(error).__name__
