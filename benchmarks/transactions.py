"""Transactions over several tables beside commits, on several databases.

Each round runs in a separate process. `python -m benchmarks.transactions STORE` prints its result as JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import growth
from benchmarks.databases import EMBEDDED, database_of
from benchmarks.findings import Durability, Finding, LeftOut
from benchmarks.measurement import Sample
from benchmarks.measurement import growth as growing
from benchmarks.population import namespaces_for, populate
from benchmarks.traffic import counted
from polaris_spark.errors import PolarisError

CATALOG = 1_000
"""Number of tables of the catalog."""

TABLES = 10
"""Number of tables that a transaction changes."""

TURNS = 30
"""Number of transactions of each kind in a round, in turn with single commits."""


def measure(folder: Path, *, rounds: int, schemes: Sequence[str]) -> list[Finding]:
    """Measure transactions on databases, one after another.

    Args:
        schemes: URI schemes of the databases.
    """
    findings: list[Finding] = []
    for scheme in schemes:
        try:
            with database_of(scheme, folder) as database:
                store = database.uri("transactions")
                findings += _figures(scheme, [_run(store) for _ in range(rounds)])
                how = EMBEDDED[scheme] if database.server is None else database.server.durability
                findings.append(Durability(f"both sides on {scheme}", how))
        except (PolarisError, ImportError) as error:
            findings.append(LeftOut(scheme, str(error)))
    return findings


def _run(store: str) -> dict[str, float]:
    command = [sys.executable, "-m", __name__, store]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"transactions on {store} failed: {done.stderr[-2_000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _figures(scheme: str, taken: Sequence[dict[str, float]]) -> list[Finding]:
    def sample(name: str) -> Sample:
        return Sample(tuple(one[name] for one in taken))

    what, one, ten = f"{scheme}: transaction over {TABLES} tables", "one commit", f"{TABLES} commits"
    return [
        growing(f"{what}, us", sample("together_us"), sample("one_us"), one, 2),
        growing("the same, us", sample("together_us"), sample("apart_us"), ten, 1),
        growing("its commit alone, us", sample("commit_us"), sample("one_us"), one, 2),
        growing(f"{what}, round trips", sample("together_trips"), sample("apart_trips"), ten, 1),
        growing(f"{what} in one request, us", sample("request_us"), sample("one_us"), one, 2),
        growing("the same, round trips", sample("request_trips"), sample("apart_trips"), ten, 1),
    ]


def transactions(store: str) -> dict[str, float]:
    """Change tables by a commit for each, in a transaction, and by one request. Return medians of the times and of the
    round trips."""
    paths = [growth.table_path(CATALOG, number) for number in range(TABLES)]
    times: dict[str, list[float]] = {"one": [], "apart": [], "together": [], "commit": [], "request": []}
    trips: dict[str, list[float]] = {"apart": [], "together": [], "request": []}
    with growth.opened(store, commit_timeout="1 h") as session:
        if session.request("HEAD", paths[0])[0] == 404:
            populate(session, tables=CATALOG, namespaces=namespaces_for(CATALOG))
        with counted(session.connection.backend) as traffic:
            for _ in range(TURNS):
                traffic.clear()
                each = []
                for path in paths:
                    begun = time.perf_counter_ns()
                    commit(session, path)
                    each.append(time.perf_counter_ns() - begun)
                trips["apart"].append(traffic.round_trips)
                times["one"] += each
                times["apart"].append(sum(each))
                traffic.clear()
                begun = time.perf_counter_ns()
                with session.transaction(isolation="snapshot") as inside:
                    for path in paths:
                        commit(inside, path)
                    last = time.perf_counter_ns()
                end = time.perf_counter_ns()
                times["together"].append(end - begun)
                times["commit"].append(end - last)
                trips["together"].append(traffic.round_trips)
                traffic.clear()
                begun = time.perf_counter_ns()
                _commit_together(session, paths)
                times["request"].append(time.perf_counter_ns() - begun)
                trips["request"].append(traffic.round_trips)
    return {f"{name}_us": statistics.median(taken) / 1_000 for name, taken in times.items()} | {
        f"{name}_trips": statistics.median(taken) for name, taken in trips.items()
    }


def commit(session: Any, path: str) -> None:
    """Set a property of a table to a new value."""
    _send(session, path, {"requirements": [], "updates": [_update()]})


def _commit_together(session: Any, paths: Sequence[str]) -> None:
    """Set a property of several tables by one request."""
    changes = []
    for path in paths:
        _, _, namespace, _, name = path.split("/")
        identifier = {"namespace": [namespace], "name": name}
        changes.append({"identifier": identifier, "requirements": [], "updates": [_update()]})
    _send(session, "v1/transactions/commit", {"table-changes": changes})


def _update() -> dict[str, Any]:
    return {"action": "set-properties", "updates": {"round": f"{time.time_ns()}"}}


def _send(session: Any, path: str, body: dict[str, Any]) -> None:
    status, _, answer = session.request("POST", path, body=json.dumps(body))
    if status not in (200, 204):
        raise RuntimeError(answer)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(transactions(sys.argv[1])) + "\n")
