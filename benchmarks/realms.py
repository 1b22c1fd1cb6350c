"""One server of many realms: loads of a table, and memory, beside a server of one realm."""

from __future__ import annotations

import http.client
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polaris_spark
from benchmarks.findings import Finding
from benchmarks.measurement import Sample, growth, limited

REALMS = 1_000
MOST_KIB = 512
"""Bar: memory of a server for each open realm, in KiB."""

_SECONDS_TO_START = 60
_SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
_PATH = "/v1/namespaces/db/tables/t"


class _Server:
    """A server process, and one connection to it."""

    def __init__(self, process: subprocess.Popen[str], uri: str) -> None:
        self.process = process
        place = urlsplit(uri)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port)

    def load(self, realm: str | None) -> None:
        """Load the table of a realm.

        Raises:
            RuntimeError: the status is not 200.
        """
        headers = {} if realm is None else {"Polaris-Realm": realm}
        self._connection.request("GET", _PATH, headers=headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {body[:200]!r}")

    def memory_kib(self) -> int:
        """Return the resident memory of the process, in KiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])


@contextmanager
def _serving(store: str, *options: str) -> Iterator[_Server]:
    command = [sys.executable, "-c", "from polaris_spark.cli import main; main()", "serve", store]
    process = subprocess.Popen(
        [*command, "--port", "0", "--insecure", *options], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    output = process.stdout
    try:
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
        yield _Server(process, lines.get(timeout=_SECONDS_TO_START).split()[-1])
    finally:
        process.terminate()
        process.wait()
        output.close()


def _fill(store: str, folder: Path, realm: str) -> None:
    """Create a realm with one table."""
    options: dict[str, Any] = {"realm": realm, "warehouse": str(folder / realm), "metadata_files": "never"}
    with polaris_spark.connect(store=store, **options) as session:
        for path, body in (
            ("v1/namespaces", {"namespace": ["db"]}),
            ("v1/namespaces/db/tables", {"name": "t", "schema": _SCHEMA}),
        ):
            assert session.request("POST", path, None, json.dumps(body))[0] == 200


def _p99s_ms(many: _Server, realms: Sequence[str], alone: _Server, calls: int) -> tuple[float, float]:
    """Load tables of realms in turn, and after each the table of the server of one realm, so that whatever else the
    machine does affects both. Return the 99th percentiles of the times in milliseconds.

    Raises:
        RuntimeError: a load failed.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for realm in islice(cycle(realms), calls):
        for server, name, found in ((many, realm, times[0]), (alone, None, times[1])):
            begun = time.perf_counter()
            server.load(name)
            found.append((time.perf_counter() - begun) * 1_000)
    first, second = (sorted(found)[int(calls * 0.99)] for found in times)
    return first, second


def measure(folder: Path, *, rounds: int, calls: int, quick: bool = False) -> list[Finding]:
    """Measure loads of one table in each of 1,000 realms of an SQLite store, by a server that has all of them open.

    Args:
        folder: folder for stores and files.
        calls: number of loads in one round.
    """
    count = 8 if quick else REALMS
    stores = {number: f"sqlite://{folder}/{number}.db" for number in (1, count)}
    for number, store in stores.items():
        with polaris_spark.connect(store=store, realm="held", warehouse=str(folder / f"held{number}")):
            for one in range(number):
                _fill(store, folder, f"r{one}")
    names = [f"r{number}" for number in range(count)]
    with ExitStack() as stack:
        alone = stack.enter_context(_serving(stores[1], "--realm", "r0"))
        many = stack.enter_context(
            _serving(stores[count], "--realms", "all", "--max-open-realms", str(2 * count))
        )
        alone.load(None)
        many.load(names[0])
        before = many.memory_kib()
        for name in names:
            many.load(name)
            alone.load(None)  # so that both have done the same number of loads
        each = (many.memory_kib() - before) / count
        times = [_p99s_ms(many, names, alone, calls) for _ in range(rounds)]
        mine, other = (Sample(values) for values in zip(*times, strict=True))
        what = f"p99 of loadTable over HTTP, in turn in {count:,} realms, ms"
        return [
            growth(what, mine, other, "server of one realm", 2, digits=2),
            limited("memory of the server for each open realm, KiB", Sample((each,)), MOST_KIB, "KiB"),
        ]
