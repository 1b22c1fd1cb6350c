"""A catalog with a clock that tests move, and a procedure whose outcome tests choose."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.clock import ManualClock
from polaris_spark.jobs import registry
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure
from polaris_spark.jobs.worker import Worker
from polaris_spark.rest.session import Session


class Counted:
    """A procedure that counts its calls, and fails while `error` is set."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.principals: list[str] = []
        self.error: Exception | None = None
        self.meanwhile: Callable[[Call], object] = lambda _: None

    def run(self, call: Call, arguments: Any) -> list[tuple[int]]:
        self.calls.append(dict(arguments))
        self.principals.append(call.session.principal)
        self.meanwhile(call)
        if self.error is not None:
            raise self.error
        return [(2,), (3,)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def session(tmp_path: Path, clock: ManualClock) -> Iterator[Session]:
    store = f"memory:{uuid.uuid4()}"
    with polaris_spark.connect(
        store=store, warehouse=str(tmp_path / "w"), principal="ann", clock=clock
    ) as opened:
        yield opened


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The procedure `counted`."""
    found = Counted()
    known = dict(registry.procedures())
    known["counted"] = Procedure(
        name="counted",
        parameters=(
            Parameter("n", "INT", "a number"),
            Parameter("options", "MAP<STRING,STRING>", "options"),
            Parameter("at", "TIMESTAMP", "a time"),
            Parameter("names", "ARRAY<STRING>", "names"),
        ),
        columns=(Column("files", "BIGINT"),),
        run=found.run,
        over_http=True,
        needs=(),
    )
    monkeypatch.setattr(registry, "procedures", lambda: known)
    return found


@pytest.fixture
def worker(session: Session) -> Iterator[Worker]:
    opened = Worker(session)
    yield opened
    opened.stop()
