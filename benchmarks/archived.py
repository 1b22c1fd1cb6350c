"""The size of the archived log, in bytes a commit, and the time to archive it.

A hundred tables get appends as Spark makes them, in random order, each in a commit of its own. Then their history is
trimmed.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

import polaris_spark
from benchmarks.measurement import Figure, Sample, limited
from benchmarks.population import SCHEMA, WAREHOUSE
from polaris_spark.catalog.branches.archived_log import ARCHIVE, LOG, LogPart, parts_in
from polaris_spark.clock import ManualClock, SystemClock
from polaris_spark.jobs.registry import call
from polaris_spark.rest.session import Session

BYTES = 150
"""Maximum size of the archived log, in bytes a commit."""

_TABLES = 100
_MS_BETWEEN = 20_000
_LATER_MS = 30 * 86_400_000


def measure(*, commits: int, rounds: int) -> list[Figure]:
    """Archive the log of this number of commits, in the memory of this process."""
    taken = [_archived(commits, seed) for seed in range(rounds)]
    sizes, seconds = (Sample(tuple(one)) for one in zip(*taken, strict=True))
    each = Sample(tuple(1e6 * value / commits for value in seconds.values))
    return [
        limited(f"archived log of {commits:,} appends, bytes a commit", sizes, BYTES, "bytes"),
        limited("the same: time of the trim, for each commit", each, 1_000, "us"),
    ]


def _archived(commits: int, seed: int) -> tuple[float, float]:
    """Return the size of the archived log, in bytes a commit, and the time of the trim, in seconds."""
    rng, clock = random.Random(seed), ManualClock(SystemClock().now_ms())
    with polaris_spark.connect(
        store=f"memory:archived-{seed}", warehouse=WAREHOUSE, metadata_files="never", clock=clock
    ) as session:
        _request(session, "v1/namespaces", {"namespace": ["db"]})
        for table in range(_TABLES):
            _request(session, "v1/namespaces/db/tables", {"name": f"t{table}", "schema": SCHEMA})
        numbers, parents = [0] * _TABLES, [-1] * _TABLES
        for _ in range(commits):
            table = rng.randrange(_TABLES)
            numbers[table] += 1
            body, parents[table] = _append(rng, numbers[table], parents[table], clock.now_ms())
            _request(session, f"v1/namespaces/db/tables/t{table}", body)
            clock.advance(_MS_BETWEEN)
        clock.advance(_LATER_MS)
        begun = time.perf_counter()
        call(session, "trim")
        seconds = time.perf_counter() - begun
        references = session.catalog.references
        parts = [
            part
            for part in parts_in(references.read(ARCHIVE).index(LOG).range())
            if part.range.reference == session.catalog.reference
        ]
        bytes_there = sum(len(references.store.get(part.id, LogPart).compressed) for part in parts)
        return bytes_there / sum(part.range.last - part.first + 1 for part in parts), seconds


def _append(rng: random.Random, number: int, parent: int, now_ms: int) -> tuple[dict[str, Any], int]:
    """Return the body of a commit that appends a snapshot, and the id of the snapshot."""
    id = rng.getrandbits(62)
    summary = {
        "operation": "append",
        "spark.app.id": f"application_{rng.randrange(10**13)}_{rng.randrange(10**4):04}",
        "added-data-files": str(rng.randrange(1, 50)),
        "added-records": str(rng.randrange(10**6)),
        "added-files-size": str(rng.randrange(10**9)),
        "total-records": str(rng.randrange(10**9)),
        "engine-name": "spark",
    }
    snapshot = {
        "snapshot-id": id,
        "sequence-number": number,
        "timestamp-ms": now_ms,
        "summary": summary,
        "manifest-list": f"{WAREHOUSE}/{id}.avro",
        "schema-id": 0,
        **({"parent-snapshot-id": parent} if parent >= 0 else {}),
    }
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id}
    return {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref]}, id


def _request(session: Session, path: str, body: dict[str, Any]) -> None:
    status, _, answer = session.request("POST", path, body=json.dumps(body))
    if status >= 300:
        raise RuntimeError(f"POST {path} failed: {answer}")
