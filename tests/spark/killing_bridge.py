"""The Python side of the shim, which kills its driver at a step of a refresh: `KILL_AT` in the interpreter's script.

The refresh is the first one after the file `KILL_ARMED` exists.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polaris_spark import bridge
from polaris_spark.jobs.materialized_views import refresh, write
from polaris_spark.rest.session import Session

STEPS = ("plan", "rows", "commit", "answer")
"""Before the state of the sources is read, before rows are computed, before the commit, and after it."""


def die_at(step: str) -> None:
    """Kill the JVM and this process if it is their turn."""
    if os.environ["KILL_AT"] == step and Path(os.environ["KILL_ARMED"]).exists():
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def after(step: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that comes to a step before it calls another one."""

    def call(*arguments: Any, **options: Any) -> Any:
        die_at(step)
        return function(*arguments, **options)

    return call


answer = Session.request


def answered(session: Session, method: str, path: str, *arguments: Any, **options: Any) -> Any:
    """Answer as usual, unless this is the commit of a storage table."""
    is_commit = method == "POST" and path.endswith("/tables/storage")
    if is_commit:
        die_at("commit")
    found = answer(session, method, path, *arguments, **options)
    if is_commit:
        die_at("answer")
    return found


if __name__ == "__main__":
    refresh.planned = after("plan", refresh.planned)
    write.write_rows = after("rows", write.write_rows)  # type: ignore[assignment]
    refresh.write_rows = write.write_rows
    Session.request = answered  # type: ignore[method-assign]  # the one place that all requests pass
    bridge.main()
