"""What must hold after processes were killed, servers crashed and answers got lost.

- What was acknowledged is in the log exactly once, what was refused is not in it, anything else at most once.
- Nothing is in the log that nobody asked for, and an operation repeated by another process is done exactly once.
- The log replays forwards and backwards to the state, and the state is what the last logged changes say.
- Every strong pointer of every commit of every reference resolves.
- Commits are numbered without gaps, no id was made twice, and no two processes made ids of one node at one time.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from polaris_spark.backends.base import Backend, ObjectKey
from polaris_spark.commits.log import commits, entries
from polaris_spark.commits.rows import Head, LogEntry
from polaris_spark.ids import unpack
from polaris_spark.objects import decode_header
from polaris_spark.testing.processes import rows
from polaris_spark.testing.waiting import PATIENCE_S
from tests.catalog.branches.test_log import check as check_replay
from tests.faults.working import Plan, start_again
from tests.rest.client import Client, connect


class Told:
    """The contents of the journals of a folder, by operation id."""

    def __init__(self, folder: Path) -> None:
        self.requests: dict[str, dict[str, Any]] = {}
        self.verdicts: dict[str, str] = {}
        self.answers: dict[str, Any] = {}
        self.senders: dict[str, int] = {}
        self.wrong: list[dict[str, Any]] = []
        for number in sorted(int(path.name.partition("-")[2]) for path in folder.glob("journal-*")):
            for event in events(folder / f"journal-{number}"):
                self._take(number, event)

    def _take(self, number: int, event: dict[str, Any]) -> None:
        kind, key = event.pop("event"), event.get("key", "")
        if kind == "sent":
            self.requests[key] = event
            self.senders[key] = number
            self.verdicts[key] = "sent"
        elif kind == "wrong":
            self.wrong.append(event)
        elif key:
            self.verdicts[key] = kind
            self.answers[key] = event.get("answer")

    def __repr__(self) -> str:
        return str(dict(Counter(self.verdicts.values())))

    def keys(self, *verdicts: str) -> set[str]:
        """Return the operations whose last journal entry has this kind."""
        return {key for key, verdict in self.verdicts.items() if verdict in verdicts}


def events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal. The last line may be incomplete."""
    for line in path.read_bytes().split(b"\n"):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def acknowledged(folder: Path, number: int) -> int:
    """Return the number of commits that were acknowledged to a process."""
    path = folder / f"journal-{number}"
    return sum(event["event"] == "done" for event in events(path)) if path.exists() else 0


def check(uri: str, folder: Path) -> Told:
    """Check everything, let another process repeat what was not acknowledged, and check again.

    Args:
        uri: of the store, without a proxy.
        folder: where the journals are.
    Returns:
        what had been told before the repetition.
    """
    told = Told(folder)
    assert not told.wrong, told.wrong[:3]
    with connect(uri, None, create=False).session as session:
        client = Client(session)
        check_log(client, told)
        check_nodes(client, told)
        check_references(session.connection.backend, session.catalog.head().store.realm)
    open_ends = [told.requests[key] for key in sorted(told.keys("sent", "refused", "unknown"))]
    some_done = [told.requests[key] for key in sorted(told.keys("done"))[:20]]
    number = 1 + max(told.senders.values(), default=0)
    again = start_again(Plan(uri, folder, number + 1_000, 0, ()), open_ends + some_done)
    again.join(PATIENCE_S)
    assert again.exitcode == 0
    now = Told(folder)
    assert not now.wrong, now.wrong[:3]
    assert now.keys("done") == set(told.requests)
    with connect(uri, None, create=False).session as session:
        check_log(Client(session), now)
        check_replay(Client(session))
        check_references(session.connection.backend, session.catalog.head().store.realm)
    return told


def log_of(client: Client) -> list[LogEntry]:
    """Return the whole log of the catalog, oldest entry first."""
    head = client.session.catalog.head()
    return [entry for _, _, _, entry in entries(head.store, head.head)][::-1]


def check_log(client: Client, told: Told) -> None:
    log = [entry for entry in log_of(client) if entry.operation]
    times = Counter(str(uuid.UUID(bytes=entry.operation)) for entry in log)
    assert max(times.values(), default=1) == 1, "an operation was carried out twice"
    assert set(times) <= set(told.requests), "an operation was logged that nobody sent"
    lost = told.keys("done") - set(times)
    assert not lost, f"{len(lost)} acknowledged operations are not in the log, such as {sorted(lost)[0]}"
    kept = told.keys("refused") & set(times)
    assert not kept, f"refused operations were carried out: {[told.answers[key] for key in sorted(kept)][:5]}"
    last: dict[str, dict[str, str]] = {}
    for entry in log:
        request = told.requests[str(uuid.UUID(bytes=entry.operation))]
        for update in request["body"].get("updates", ()):
            last.setdefault(request["path"], {}).update(update["updates"])
    for path, properties in last.items():
        found = client.ok("GET", path)["metadata"]["properties"]
        assert {name: found.get(name) for name in properties} == properties


def check_nodes(client: Client, told: Told) -> None:
    """Check that no two processes generated ids of one node at the same time, and that commits are numbered without
    gaps."""
    head = client.session.catalog.head()
    makers: dict[int, int] = {}
    for id, _, _, entry in entries(head.store, head.head):
        if entry.operation:
            makers[id] = told.senders[str(uuid.UUID(bytes=entry.operation))]
    listed = list(commits(head.store, head.head))
    ids = [each for id, commit in listed for each in (id, commit.entries) if each]
    assert len(ids) == len(set(ids))
    numbers = [commit.number for _, commit in listed]
    assert numbers == list(range(head.head.number, -1, -1))
    assert all(newer.time > older.time for (_, newer), (_, older) in pairwise(listed))
    spans: dict[tuple[int, int], list[int]] = {}
    for id, maker in makers.items():
        parts = unpack(id)
        spans.setdefault((parts.node, maker), []).append(parts.ms)
    by_node: dict[int, list[tuple[int, int]]] = {}
    for (node, _), made in spans.items():
        by_node.setdefault(node, []).append((min(made), max(made)))
    for node, several in by_node.items():
        several.sort()
        for (_, end), (begin, _) in pairwise(several):
            assert end < begin, f"two processes made ids of node {node} at the same time"


def check_references(backend: Backend, realm: str) -> int:
    """Check that every strong pointer of all commits of all references resolves. Return the number of objects."""
    heads = []
    for _, _, _, value in rows(backend, backend.splits("references", [realm], 1)):
        assert isinstance(value, bytes)
        head = msgspec.msgpack.decode(value, type=Head)
        heads += [] if head.given_up else [head.commit]
    seen: set[int] = set()
    pending = set(heads)
    while pending:
        seen |= pending
        found = backend.read_objects(realm, [ObjectKey(id) for id in pending])
        following: set[int] = set()
        for id in pending:
            assert ObjectKey(id) in found, f"object {id} is pointed to and missing"
            header = decode_header(found[ObjectKey(id)], str(id))
            following.update(header.strong)
            if header.type == "commit":
                following.update(header.weak)  # all of history is to be whole
        pending = following - seen
    return len(seen)
