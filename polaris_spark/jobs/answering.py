"""Procedures over the bridge: requests of the JVM, answered with a status and JSON.

- `PROCEDURES`: return the definitions of all procedures.
- `CALL <name>`, with `{"id": ..., "arguments": {...}, "driver": {...} or null}`: return the result rows, as arrays.
- `CANCEL <id>`: request that a call stops, because its caller no longer waits for it.

Times are microseconds since 1970, in UTC. Errors have the format of the REST protocol's error model.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec

from polaris_spark.errors import PolarisError
from polaris_spark.jobs.driver import Driver
from polaris_spark.jobs.procedure import Call, Procedure
from polaris_spark.jobs.registry import find, procedures
from polaris_spark.jobs.types import TYPES
from polaris_spark.rest.errors import response_of
from polaris_spark.rest.session import Session

logger = logging.getLogger(__name__)

MAX_RESULT_BYTES = 1 << 30
"""Maximum size of a result, in bytes. Java holds the whole result in one array."""


class Answers:
    """Answers requests about procedures, for one process. Thread-safe."""

    def __init__(self) -> None:
        self._running: dict[str, Call] = {}

    def answer(self, session: Session, method: str, name: str, body: str) -> tuple[int, str]:
        """Answer a request; return status and JSON. Never raises."""
        try:
            if method == "PROCEDURES":
                return 200, definitions()
            if method == "CANCEL":
                running = self._running.get(name)
                if running is not None:
                    running.cancel()
                return 200, "{}"
            return 200, self._call(session, name, json.loads(body))
        except PolarisError as error:
            response = response_of(error)
            return response.status, response.body
        except BaseException as error:  # SystemExit too: the process must continue to serve other requests
            logger.warning("%s %s failed", method, name, exc_info=error)
            message = f"{name} failed: {said_by(error)}"
            return 500, json.dumps(
                {"error": {"message": message, "type": "InternalServerError", "code": 500}}
            )

    def _call(self, session: Session, name: str, message: dict[str, Any]) -> str:
        procedure = find(name)
        driver = None if message["driver"] is None else Driver(**message["driver"])
        call = Call(session, None if driver is None else driver.session)
        arguments = decoded(procedure, message["arguments"])
        self._running[message["id"]] = call
        try:
            rows = procedure.rows(call, arguments)
        finally:
            del self._running[message["id"]]
            if driver is not None:
                driver.release()
        return encoded(procedure, rows)


def definitions() -> str:
    """Return the definitions of all procedures as JSON."""
    listed = [
        {
            "name": one.name,
            "comment": one.comment,
            "uses_spark": one.uses_spark,
            "parameters": [parameter._asdict() for parameter in one.parameters],
            "columns": [column._asdict() for column in one.columns],
        }
        for one in procedures().values()
    ]
    return msgspec.json.encode(listed).decode()


def decoded(procedure: Procedure, arguments: dict[str, Any]) -> dict[str, Any]:
    """Convert arguments from JSON to Python values. Unknown arguments are not converted; they are refused later."""
    types = {one.name: TYPES[one.type] for one in procedure.parameters}
    return {
        name: value if value is None or name not in types else types[name].decode(value)
        for name, value in arguments.items()
    }


def encoded(procedure: Procedure, rows: list[tuple[Any, ...]]) -> str:
    """Return rows as JSON.

    Raises:
        ValueError: the JSON is too large for one result.
    """
    encoders = [TYPES[column.type].encode for column in procedure.columns]
    text = json.dumps(
        [[None if v is None else encode(v) for encode, v in zip(encoders, row, strict=True)] for row in rows],
        ensure_ascii=False,
        separators=(",", ":"),
    )
    if len(text) > MAX_RESULT_BYTES // 4:
        raise ValueError(f"its {len(rows)} rows are {len(text)} characters, which is too much for one result")
    # A file name may not be valid Unicode. The escape makes it valid in JSON.
    return text.encode(errors="backslashreplace").decode()


def said_by(error: BaseException) -> str:
    """Return the message of an unexpected error in one line, without the stack traces of Spark's workers and Py4J."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    traced = next((i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")), None)
    if traced is not None:
        after = [line for line in lines[traced + 1 :] if line[0] not in " \t"]
        return after[0] if after else lines[0]
    named = lines[0] if lines else ""
    return f"{type(error).__name__}: {named}" if named else type(error).__name__
