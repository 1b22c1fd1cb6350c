"""The Python side of the shim, which also notes each request in a file: `RECORDED_TO` in the interpreter's script."""

from __future__ import annotations

import json
import os
from typing import Any

from polaris_spark import bridge
from polaris_spark.rest.session import Session

answer = Session.request


def recorded(
    session: Session, method: str, path: str, query: Any = None, body: Any = None, headers: Any = None
) -> tuple[int, dict[str, str], str]:
    """Answer as usual, and record the request."""
    answered = answer(session, method, path, query, body, headers)
    note = {
        "method": method,
        "path": path,
        "query": query,
        "sent": len(body or ""),
        "status": answered[0],
        "snapshots": answered[2].count('"manifest-list":'),
    }
    with open(os.environ["RECORDED_TO"], "a", encoding="utf-8") as file:
        print(json.dumps(note), file=file)
    return answered


if __name__ == "__main__":
    Session.request = recorded  # type: ignore[method-assign]  # the one place that all requests pass
    bridge.main()
