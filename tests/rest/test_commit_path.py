"""The function calls of a commit, from the bridge to the database."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import polaris_spark
from polaris_spark.backends.sqlite.files import Connection
from polaris_spark.bridge import Bridge

MOST = 22
"""Maximum number of calls of this package between a request's arrival and its SQL statement, both included. If there
are more, a reader must follow calls that only forward to others."""


def _callers(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back


def test_a_commit_passes_few_functions_from_the_bridge_to_its_sql_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = Bridge()
    name = bridge.add(
        polaris_spark.connect(store=f"sqlite://{tmp_path}/store.db", warehouse=str(tmp_path / "lake"))
    )

    def post(path: str, body: dict[str, Any]) -> None:
        head, answer = bridge.request(f"{name}\nPOST\nv1/{path}\n0\n", json.dumps(body))
        assert head.startswith("200\n"), answer

    swaps: list[list[str]] = []
    execute = Connection.execute

    def recording(self: Connection, statement: str, *arguments: Any) -> Any:
        if statement.startswith("UPDATE"):
            swaps.append(list(_callers(sys._getframe(1))))
        return execute(self, statement, *arguments)

    try:
        post("namespaces", {"namespace": ["a"]})
        post("namespaces/a/tables", {"name": "t", "schema": {"type": "struct", "fields": []}})
        monkeypatch.setattr(Connection, "execute", recording)
        post("namespaces/a/tables/t", {"updates": [{"action": "set-properties", "updates": {"p": "1"}}]})
        (passed,) = swaps
    finally:
        bridge.close()
    package = str(Path(polaris_spark.__file__).parent)
    inside = [caller for caller in passed if caller.startswith(package)]
    assert inside[-1].endswith(" request")
    assert len(inside) <= MOST, "\n".join(reversed(inside))
