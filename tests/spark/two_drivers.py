"""A second driver program beside the session of the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.spark.processes import next_line


class Driver:
    """A driver program in processes of its own, `driver.py`, that answers SQL."""

    def __init__(self, store: str, warehouse: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", store, warehouse],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        started = self._answer()
        self.jvm: int = started["jvm"]
        self.child: int = started["child"]

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Return the rows of a statement; raises `RuntimeError` with the driver's error."""
        assert self.process.stdin is not None
        print(statement, file=self.process.stdin, flush=True)
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        rows: list[dict[str, Any]] = answer["rows"]
        return rows

    def close(self) -> None:
        """Let the program end, or end it after a time-out."""
        try:
            self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _answer(self) -> dict[str, Any]:
        line = next_line(self.process)
        if not line:
            raise RuntimeError("the second driver ended")
        answer: dict[str, Any] = json.loads(line)
        return answer
