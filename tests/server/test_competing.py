"""HTTP servers, and the process behind Spark, that commit to one store at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import AF_UNIX, socket

from polaris_spark.bridge import PROTOCOL
from polaris_spark.commits.rows import Head
from polaris_spark.ids import unpack
from polaris_spark.spark.frames import BUFFER_BYTES, framed, receive
from polaris_spark.system.leases import NodeRecord
from polaris_spark.system.stores import system_references
from polaris_spark.testing.waiting import PATIENCE_S
from tests.faults.checking import log_of
from tests.rest.client import Client, at_once, connect, new_key, set_properties
from tests.server.servers import Server, client, options
from tests.spark.processes import next_line

THREADS = 2
"""Number of threads that send requests to each process."""


class BridgeRequests:
    """A session's `request`, sent to the process behind Spark as the JVM sends it. One connection for each thread."""

    def __init__(self, path: str, token: str) -> None:
        self._path = path
        self._token = token
        self._local = threading.local()

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], str]:
        """Answer one request, as `Session.request` does."""
        connection = self._connection()
        pairs = [text for pair in [*(query or {}).items(), *(headers or {}).items()] for text in pair]
        lines = ["1", method, path, str(len(query or {})), *pairs]
        connection.sendall(framed("".join(f"{line}\n" for line in lines), body or ""))
        answer = receive(connection, memoryview(bytearray(BUFFER_BYTES)))
        assert answer is not None
        status, *answered = answer[0].splitlines()
        return int(status), dict(zip(answered[::2], answered[1::2], strict=True)), answer[1]

    def _connection(self) -> socket:
        found: socket | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = socket(AF_UNIX)
            found.settimeout(PATIENCE_S)
            found.connect(self._path)
            found.sendall(framed(self._token, ""))
        return found


@contextmanager
def bridge(store: str) -> Iterator[tuple[Client, int]]:
    """Start the process behind Spark, and open a catalog. Yield a client of it and the id of the process."""
    token = uuid.uuid4().hex
    command = [sys.executable, "-m", "polaris_spark.bridge"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        print(json.dumps({"token": token, "protocol": PROTOCOL}), file=process.stdin, flush=True)
        path = json.loads(next_line(process))["socket"]
        print(json.dumps({"connect": {"store": store}}), file=process.stdin, flush=True)
        assert json.loads(next_line(process)) == {"connection": "1"}
        yield Client(BridgeRequests(path, token)), process.pid  # type: ignore[arg-type]  # all that it needs of a session
        process.stdin.close()  # it ends


def test_servers_and_the_process_behind_spark_carry_out_each_others_changes(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/store.db"
    mine = connect(store, tmp_path / "warehouse", metadata_files="never")
    mine.namespace("db")
    with ExitStack() as stack:
        clients: dict[int, Client] = {}
        for _ in range(2):
            server = stack.enter_context(Server(store, *options(tmp_path / "warehouse")))
            clients[server.process.pid] = client(server)
        spark, process = stack.enter_context(bridge(store))
        clients[process] = spark
        for thread in range(THREADS):
            for process in clients:
                mine.create(f"t{process}_{thread}")

        ends, carried_out = threading.Event(), set[int]()

        def watch() -> list[str]:
            while not ends.is_set() and len(carried_out) < len(clients) - 1:
                carried_out.update(_carried_out(mine))
                ends.wait(0.01)
            ends.set()
            return []

        works = [
            _committing(one, f"t{process}_{thread}", ends)
            for process, one in clients.items()
            for thread in range(THREADS)
        ]
        sent = [key for keys in at_once([watch, *works]) for key in keys]
    assert len(carried_out) >= len(clients) - 1  # one process may make all commits
    made = Counter(str(uuid.UUID(bytes=entry.operation)) for entry in log_of(mine) if entry.operation)
    assert [made[key] for key in sent] == [1] * len(sent)
    mine.session.close()


def _committing(client: Client, name: str, ends: threading.Event) -> Callable[[], list[str]]:
    """Return a function that commits to a table until `ends` is set, checks the answers, and returns the keys."""

    def commit() -> list[str]:
        keys, end = [], time.monotonic() + PATIENCE_S
        try:
            while not ends.is_set() and time.monotonic() < end:
                keys.append(new_key())
                answer = client.commit(name, set_properties(key=keys[-1]), key=keys[-1])
                assert answer.status == 200, answer
                assert answer.body["metadata"]["properties"]["key"] == keys[-1]
        finally:
            ends.set()
        return keys

    return commit


def _carried_out(client: Client) -> set[int]:
    """Return the ids of the processes whose last intent was carried out by another process, at least in part."""
    head: Head = client.session.catalog.head().head
    nodes = {unpack(slot.following).node for slot in head.slots if any(slot.outcomes)}
    references = system_references(client.session.connection.backend)
    found = [references.read(f"node/{node}", NodeRecord) for node in nodes]
    return {int(record.value.holder.rpartition(":")[2]) for record in found if record is not None}
