"""Loading a table with many snapshots, compared with reading its metadata file with pyiceberg."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.catalogs import NAMESPACE, Ours
from benchmarks.measurement import Figure, compare, growth, in_turns, median_us

FEW, MANY = 10, 1_000


def measure(folder: Path, *, rounds: int, calls: int) -> list[Figure]:
    """Measure `load_table` with `snapshots=refs`, for tables with 10 and with 1,000 snapshots."""
    from pyiceberg.table import StaticTable

    ours = Ours(folder / "loading", metadata_files="every-commit")
    try:
        few, _ = _table(ours, "few", FEW)
        many, metadata_file = _table(ours, "many", MANY)
        small, large, theirs = in_turns(
            rounds,
            [
                lambda: median_us(calls, lambda: _load(ours, few)),
                lambda: median_us(calls, lambda: _load(ours, many)),
                lambda: median_us(10, lambda: StaticTable.from_metadata(metadata_file)),
            ],
        )
    finally:
        ours.close()
    what = f"load_table of {MANY:,} snapshots (refs), us"
    return [
        compare(what, large, theirs, least=10, smaller=True, beside="pyiceberg reads its metadata.json"),
        growth(f"load_table of {MANY:,} snapshots against {FEW}, us", large, small, f"ours, {FEW}", 2),
    ]


def _load(ours: Ours, path: str) -> None:
    status, _, _ = ours.session.request("GET", path, query={"snapshots": "refs"})
    assert status == 200


def _table(ours: Ours, name: str, snapshots: int) -> tuple[str, str]:
    """Create a table with `snapshots` snapshots; return its path, and the location of its metadata file."""
    _, uuid = ours.create(name)
    path = f"v1/namespaces/{NAMESPACE}/tables/{name}"
    answer: Any = None
    for number in range(1, snapshots + 1):
        answer = ours.request("POST", path, append(uuid, number))
    return path, answer["metadata-location"]


def append(uuid: str, number: int) -> dict[str, Any]:
    """Return the body of a commit that appends a snapshot with the id `number` to `main`."""
    parent = {"parent-snapshot-id": number - 1} if number > 1 else {}
    snapshot = {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": time.time_ns() // 1_000_000,
        "manifest-list": f"file:///nowhere/snap-{number}.avro",
        "schema-id": 0,
        "summary": {
            "operation": "append",
            "added-data-files": "1",
            "added-records": "1000",
            "total-records": str(1_000 * number),
            "total-data-files": str(number),
        },
        **parent,
    }
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
    return {
        "requirements": [{"type": "assert-table-uuid", "uuid": uuid}],
        "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref],
    }
