"""Clients: threads of simulated processes that commit, read, and create and drop references."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from polaris_spark.commits.change import Operation
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    ClockError,
    CommitFailedError,
    CorruptionError,
    HistoryTrimmedError,
    NotFoundError,
    OutcomeUnknownError,
    PolarisError,
    ReferenceGoneError,
    TryAgainError,
)
from tests.simulation.changes import NUMBERS, Box, TaskChange
from tests.simulation.programs import Task
from tests.simulation.world import Process, Read, Request, World

_OUTCOMES: tuple[tuple[type[Exception], str], ...] = (
    (CommitFailedError, "refused"),
    (AlreadyExistsError, "refused"),
    (NotFoundError, "refused"),
    (BadRequestError, "forgotten"),
    (HistoryTrimmedError, "refused"),
    (ReferenceGoneError, "gone"),
    (OutcomeUnknownError, "unknown"),
    (TryAgainError, "again"),
    (ClockError, "again"),
    (OSError, "again"),
)
"""Outcome that each error stands for. After `unknown` the request may have taken effect; after the others it did not.
"""

_KINDS = (
    "add",
    "add",
    "add",
    "prepared add",
    "fill",
    "remove",
    "prepared remove",
    "move",
    "spread",
    "clear",
    "count",
    "spoil",
)


_ACTIONS = ("create", "fork", "drop", "drop", "undrop")


def key(number: int) -> bytes:
    """Return a key that prefix compression cannot shorten much, so that few keys fill a shard."""
    return b"%06d/" % number + b"%x" % (number * 2654435761 % 2**32) * 12


def random_task(rng: Random, keys: int) -> Task:
    """Return a random task on some of `keys` keys."""
    kind = rng.choice(_KINDS)
    one, two = rng.randrange(keys), rng.randrange(keys)
    if kind == "spread":
        first = rng.randrange(keys)
        return Task(kind, tuple(key(n) for n in range(first, min(keys, first + 24))), rng.randrange(100))
    if kind == "clear":
        return Task(kind, (key(min(one, two)), key(min(max(one, two), min(one, two) + 40))))
    if kind == "count":
        return Task(kind, (key(min(one, two)), key(max(one, two)), key(rng.randrange(keys))))
    if kind == "spoil":
        return Task(kind, (key(one), key(two)))
    if kind == "move":
        return Task(kind, (key(one), key(two)), rng.randrange(1, 3))
    if kind == "fill":
        return Task(kind, (key(one),), rng.randrange(3))
    expect = rng.randrange(4) if rng.random() < 0.3 else None
    return Task(kind, (key(one),), rng.randrange(1, 3), expect)


def operation_id(process: Process, rng: Random) -> bytes:
    """Return a UUIDv7 with the current time of this process's clock."""
    return process.clock.now_ms().to_bytes(6, "big") + b"\x70" + rng.randbytes(9)


class Client:
    """The requests of one thread."""

    def __init__(self, world: World, process: Process, rng: Random) -> None:
        self._world = world
        self._process = process
        self._rng = rng

    def act(self) -> None:
        """Send a new request, or repeat an earlier one."""
        plan, rng = self._world.plan, self._rng
        if self._world.requests and rng.random() < 0.2:
            self.repeat(rng.choice(self._world.requests[-12:]))
        elif rng.random() < plan.registry:
            self.register(rng.choice(plan.names), rng.choice(_ACTIONS))
        elif rng.random() < plan.reads:
            self.read(rng.choice(plan.names))
        elif self.change(rng.choice(plan.names), random_task(rng, plan.keys)).outcome == "gone":
            self.register(self._world.requests[-1].name, rng.choice(("create", "undrop", "undrop")))

    def change(self, name: str, task: Task) -> Request:
        """Commit a task to a reference."""
        id = operation_id(self._process, self._rng) if self._rng.random() < 0.8 else b""
        return self._send(self._new(name, task, "", id))

    def register(self, name: str, action: str) -> Request:
        """Create, drop or undrop a reference."""
        return self._send(self._new(name, None, action, operation_id(self._process, self._rng)))

    def repeat(self, earlier: Request) -> Request | None:
        """Repeat an earlier request of any process in this process, like a client that received no response."""
        if not earlier.operation_id:
            return None
        again = self._new(earlier.name, earlier.task, earlier.action, earlier.operation_id, earlier.operation)
        return self._send(again)

    def read(self, name: str) -> None:
        """Read all numbers of a reference."""
        world, began = self._world, self._world.tick()
        numbers: dict[bytes, int] | None = None
        row, commit = "", 0
        try:
            committer = self._process.references.open(name)
            row = committer.name
            reader = self._process.references.read(name)
            commit = reader.head.commit
            entries = dict(reader.index(NUMBERS).range())
            boxes = reader.store.get_many({entry.pointer for entry in entries.values()}, Box)
            numbers = {key: boxes[entry.pointer].number for key, entry in entries.items()}
        except CorruptionError as error:
            self._excuse(error, began, f"a read of {name}")
            return
        except (ReferenceGoneError, OutcomeUnknownError, TryAgainError):
            return
        world.reads.append(Read(name, row, began, world.tick(), commit, numbers))
        world.note(self._process.name, "read", name, commit, len(numbers))

    def _new(
        self, name: str, task: Task | None, action: str, id: bytes, operation: int | None = None
    ) -> Request:
        world = self._world
        number = len(world.requests) + 1
        request = Request(
            number,
            operation or number,
            id,
            name,
            task,
            action,
            self._process.name,
            world.tick(),
            world.observer.now_ms(),
        )
        world.requests.append(request)
        if task is not None:
            world.observer.tasks[number] = request.operation, task
        else:
            world.observer.operations[id] = request.operation
        return request

    def _send(self, request: Request) -> Request:
        world = self._world
        world.note(
            request.process,
            "asks",
            request.number,
            request.operation,
            request.name,
            request.task or request.action,
        )
        try:
            request.answer = self._call(request)
            request.outcome = "done"
        except CorruptionError as error:
            request.outcome = "unknown"
            self._excuse(error, request.invoked, f"request {request.number}")
        except (PolarisError, OSError) as error:
            if isinstance(error, ClockError):
                self._process.refused(error)
            request.outcome = next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "")
            if not request.outcome:
                world.observer.blame(f"request {request.number} was answered by {error!r}")
        request.responded = world.tick()
        world.note(request.process, "hears", request.number, request.outcome, request.answer)
        return request

    def _call(self, request: Request) -> int | None:
        references = self._process.references
        operation = Operation(request.operation_id, "simulated", b"d")
        if request.task is not None:
            writes = request.number % 3 == 0
            return references.commit(
                request.name, TaskChange(request.task, request.number, operation, writes_file=writes)
            )
        actions: dict[str, Callable[[], object]] = {
            "create": lambda: references.create(request.name, operation),
            "drop": lambda: references.drop(request.name, operation),
            "undrop": lambda: references.undrop(request.name, operation),
            "fork": lambda: references.create(
                request.name, operation, source=references.read(self._world.plan.names[0])
            ),
        }
        actions[request.action]()
        return None

    def _excuse(self, error: CorruptionError, began: int, what: str) -> None:
        """Record a violation unless a missing row was deleted after the read began.

        Only a sweep of trimmed history during a read may make its rows disappear.
        """
        gone = self._world.observer.gone
        overtaken = any(str(id) in str(error) for id, when in gone.items() if when > began)
        if not overtaken:
            self._world.observer.blame(f"{what} by {self._process.name} found the store corrupt: {error}")
