"""Runs of procedures: those that a request waits for, and those in the background, with their results."""

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
"""Largest number of runs in the background at a time, in one process."""
MAX_KEPT = 64
"""Largest number of ended runs that a session remembers."""
MAX_KEPT_BYTES = 64 * 2**20
"""Largest memory of the results that a session remembers, and of the result of one run in the background, in bytes."""
MAX_MESSAGE = 10_000
"""Largest length of an error's message that a session remembers, in characters. It may repeat an argument."""
MAX_PAGE_ROWS = 10_000
"""Largest number of rows in an answer about a run."""
MAX_PAGE_CHARACTERS = 4 * 2**20
"""Size of the rows in an answer about a run, after which the other rows come with the next page."""
MAX_RESULT_CHARACTERS = 2**28
"""Largest size of a result that a request waits for. Java holds the whole result in one array of bytes."""
CLOSING_SECONDS = 30
"""Time for all runs to end after they were cancelled because the session closes, in seconds."""

_SLOTS = threading.BoundedSemaphore(MAX_RUNNING)

RUNNING, SUCCEEDED, FAILED, CANCELLED = "running", "succeeded", "failed", "cancelled"


class Run:
    """A run of a procedure. Thread-safe."""

    def __init__(self, id: str, procedure: Procedure, principal: str, started_ms: int) -> None:
        self.id = id
        self.procedure = procedure
        self.principal = principal
        self.started_ms = started_ms
        self.status = RUNNING
        self.ended = threading.Event()
        self.ended_at = 0.0
        """Monotonic time of the end, in seconds."""
        self.failure: Response | None = None
        """The answer that describes why the run failed."""
        self.rows: list[str] = []
        """Each row of the result as JSON text."""
        self.size = 0
        """Memory of the result or of the error, in bytes."""
        self._progress: Progress | None = None
        self._call: Call | None = None
        self._is_cancelled = False

    def watch(self, step: str, done: int, total: int) -> None:
        """Note the progress of the run."""
        self._progress = Progress(step, done, total)

    def bind(self, call: Call) -> None:
        """Set the call that `cancel` cancels, before others can find the run."""
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
                    f"the {len(rows)} rows of {self.procedure.name} take {self.size} bytes; at most "
                    f"{MAX_KEPT_BYTES} are kept: ask for less, or call the procedure in process. "
                    "What the procedure did stays"
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
        """Note that the run has ended."""
        self._call, self.ended_at = None, time.monotonic()
        self.ended.set()

    def described(self) -> RunResponse:
        """Return the run without its rows."""
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
        """Return the run as JSON text, with rows of the result from row `first`, if it has ended."""
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
        """Let other requests find a run while its own request waits for it.

        Raises:
            AlreadyExistsError: there is a run with this id.
        """
        with self._guard:
            if run.id in self._runs:
                raise AlreadyExistsError(f"there is a run {run.id!r} already")
            self._runs[run.id] = run
        try:
            yield
        finally:
            run.end()
            with self._guard:
                self._runs.pop(run.id, None)

    def begin(self, run: Run, action: Callable[[], list[tuple[Any, ...]]]) -> Run:
        """Start a run in the background; return it, or the run of this id and procedure that was started before.

        Raises:
            AlreadyExistsError: the id belongs to a run of another procedure or principal.
            TryAgainError: as many runs as possible are in progress, or the session closes.
        """
        with self._guard:
            present = self._runs.get(run.id)
            if present is not None:
                if (present.procedure.name, present.principal) != (run.procedure.name, run.principal):
                    raise AlreadyExistsError(f"the run {run.id!r} belongs to another call; choose another id")
                return present
            if self._is_closed:
                raise TryAgainError("the server shuts down; nothing was started")
            if not _SLOTS.acquire(blocking=False):
                raise TryAgainError(f"{MAX_RUNNING} procedures are running already; nothing was started")
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
            raise TryAgainError("the system starts no further thread; nothing was started") from None
        return run

    def find(self, id: str) -> Run | None:
        """Return a run; None if it does not exist, or ended so long ago that it was forgotten."""
        with self._guard:
            return self._runs.get(id)

    def all(self) -> list[Run]:
        """Return every run that is remembered, oldest first."""
        with self._guard:
            return list(self._runs.values())

    def close(self) -> None:
        """Cancel every run, and wait until all have ended, but at most `CLOSING_SECONDS`."""
        with self._guard:
            self._is_closed = True
        running = [one for one in self.all() if not one.ended.is_set()]
        for one in running:
            one.cancel()
        until = time.monotonic() + CLOSING_SECONDS
        for one in running:
            if not one.ended.wait(max(until - time.monotonic(), 0.0)):
                log.warning(
                    "the run %s of %s has not ended; its store is closed now", one.id, one.procedure.name
                )

    def _forget_oldest(self) -> None:
        with self._guard:
            ended = [one for one in self._runs.values() if one.ended.is_set()]
            ended.sort(key=lambda one: one.ended_at)  # a long run ends after shorter ones that began later
            kept = sum(one.size for one in ended)
            for one in ended[:-1]:
                if len(ended) <= MAX_KEPT and kept <= MAX_KEPT_BYTES:
                    return
                del self._runs[one.id]
                ended = ended[1:]
                kept -= one.size


def run_id(text: str | None) -> str:
    """Return the id of a run: the client's, or a new one.

    Raises:
        InputError: the client's id has other characters than letters, digits and dashes, or more than 80.
    """
    if text is None:
        return str(uuid.uuid4())
    if not (0 < len(text) <= 80 and text.isascii() and text.replace("-", "").isalnum()):
        raise InputError(f"the id {text[:80]!r} of a run must be 1 to 80 letters, digits and dashes")
    return text


def encoded(procedure: Procedure, rows: list[tuple[Any, ...]]) -> list[str]:
    """Return each row of a result as JSON text: an array of the columns' values."""
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
    """Return the answer to a call of a procedure that failed."""
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
    """Return the message of an unexpected error in one line, without the stack traces of Spark's workers and Py4J."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    traced = next((i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")), None)
    if traced is not None:
        after = [line for line in lines[traced + 1 :] if line[0] not in " \t"]
        return after[0] if after else lines[0]
    named = lines[0] if lines else ""
    return f"{type(error).__name__}: {named}" if named else type(error).__name__
