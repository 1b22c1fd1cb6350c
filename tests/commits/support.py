"""A small change for tests of the commit protocol, and a reference for its commits."""

from __future__ import annotations

import threading
import uuid

import msgspec

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from polaris_spark.clock import Clock, ManualClock
from polaris_spark.commits.change import Change, Operation
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.settings import CommitSettings, FileWriter
from polaris_spark.commits.state import State
from polaris_spark.errors import CommitFailedError
from polaris_spark.ids import IdGenerator, Lease, LeaseSource
from polaris_spark.index import Entry
from polaris_spark.objects import object_type
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.registry import References
from tests.mailboxes import MemoryMailbox, Office

NODES = iter(range(1_000_000))
_guard = threading.Lock()


class OneLease:
    """A lease that never ends. No other generator of this process has its node number."""

    def acquire(self, after_ms: int) -> Lease:
        with _guard:
            return Lease(next(NODES) % 1024, after_ms + 1, after_ms + 10**10)

    def renew(self, lease: Lease) -> Lease:
        return lease._replace(end_ms=lease.end_ms + 10**10)

    def release(self, lease: Lease, last_id: int) -> None:
        pass

    def confirm(self, now_ms: int, expected_ms: int) -> None:
        pass


@object_type("test-box", revision=1)
class Box(msgspec.Struct, frozen=True, array_like=True):
    number: int


class Add(Change[object, int]):
    """Add to the number at a name. With `expect`, only if the number is the expected one."""

    def __init__(
        self, name: str, amount: int = 1, *, expect: int | None = None, operation: Operation | None = None
    ) -> None:
        self.name = name.encode()
        self.amount = amount
        self.expect = expect
        self.operation = operation or Operation(b"", "tester")
        self.runs = 0

    def from_request(self, request: bytes, operation: Operation) -> Add | None:
        name, amount, expect = msgspec.msgpack.decode(request)
        return Add(name.decode(), amount, expect=expect, operation=operation)

    def prepare(self, view: State) -> object:
        return None

    def apply(self, state: State, prepared: object) -> int:
        self.runs += 1
        found = state.lookup("names", self.name)
        number = state.get(found.pointer, Box).number if found else 0
        if self.expect is not None and number != self.expect:
            raise CommitFailedError(f"{self.name!r} holds {number}, not {self.expect}")
        after = state.add(Box(number + self.amount))
        state.put("names", self.name, Entry(after))
        before = found.pointer if found else 0
        state.log(
            LogEntry(self.operation.id, self.operation.principal, 1, "add", 7, self.name, before, after)
        )
        return number + self.amount

    def repeat(self, state: State, entries: list[LogEntry]) -> int:
        return state.get(entries[-1].after, Box).number


class Requested(Add):
    """An addition that other processes can apply from its request."""

    def as_request(self) -> bytes:
        return msgspec.msgpack.encode((self.name, self.amount, self.expect))


def references(
    backend: Backend | None = None,
    *,
    realm: str = "r",
    clock: Clock | None = None,
    leases: LeaseSource | None = None,
    files: FileWriter | None = None,
    office: Office | None = None,
    **settings: object,
) -> References:
    """The references of a new process's view of a store: own cache, own ids.

    Args:
        leases: needed where other processes use the store: nodes are counted in this one only.
        office: through which the process exchanges messages with others.
    """
    clock = clock or ManualClock()
    backend = backend or open_backend(f"memory:{uuid.uuid4()}")
    backend.setup()
    store = ObjectStore(backend, realm, ObjectCache(), store_key="test")
    ids = IdGenerator(leases or OneLease(), clock)
    found = References(
        store,
        ids=ids,
        clock=clock,
        settings=CommitSettings(quotas={}, **settings),  # type: ignore[arg-type]  # whatever a test sets
        files=files,
        mailbox=None if office is None else MemoryMailbox(office, ids.node, clock),
    )
    found.initialize()
    return found


def committer(backend: Backend | None = None, **settings: object) -> Committer:
    """Return a committer of the registry's own reference, which the tests use like any other reference."""
    return references(backend, **settings).root  # type: ignore[arg-type]  # whatever a test sets


def number(committer: Committer, name: str) -> int:
    """Return the number at a name in the newest commit."""
    head = committer.read()
    found = head.index("names").get(name.encode())
    return head.store.get(found.pointer, Box).number if found else 0
