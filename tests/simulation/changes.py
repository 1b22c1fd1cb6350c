"""The tasks of simulated clients as changes of the commit protocol."""

from __future__ import annotations

import msgspec

from polaris_spark.commits.change import Change, Operation, PrepareAgain
from polaris_spark.commits.committer import APART_SIZE
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.errors import CommitFailedError
from polaris_spark.index import Entry
from polaris_spark.objects import Strong, object_type
from tests.simulation.programs import Refused, Task

NUMBERS = "numbers"
"""Name of the index of simulated references; it maps keys to boxes."""

_LARGE_EVERY = 16
"""One request out of this number is first applied outside of batches, as large changes are."""

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(tuple[Task, int]).decode
decode_result = msgspec.msgpack.Decoder(tuple[int, int]).decode
"""Decodes `LogEntry.result` of a task: the number of its request, and its answer."""


@object_type("simulated-box", revision=1)
class Box(msgspec.Struct, frozen=True, array_like=True):
    """A number. `before` points to the box that it replaced, if that box must be kept."""

    number: int
    before: Strong = 0


class TaskChange(Change[object, int]):
    """A task as a change of the commit protocol. Its log entries contain its request, so that the model can find it."""

    def __init__(self, task: Task, request: int, operation: Operation, *, writes_file: bool = False) -> None:
        self.task = task
        self.request = request
        self.operation = operation
        self.writes_file = writes_file
        self.size = APART_SIZE + 1 if request % _LARGE_EVERY == 0 else 1

    def as_request(self) -> bytes:
        return b"" if self.writes_file else _encode((self.task, self.request))

    def from_request(self, request: bytes, operation: Operation) -> TaskChange:
        return TaskChange(*_decode_request(request), operation)

    def prepare(self, view: State) -> object:
        """Return the new box and its id for a prepared add, as an import prepares its rows; otherwise None.

        Raises:
            CommitFailedError: a prepared remove finds no number.
        """
        if self.task.kind == "prepared remove" and view.lookup(NUMBERS, self.task.keys[0]) is None:
            raise CommitFailedError(f"refused: {self.task.kind}")
        if self.task.kind != "prepared add":
            return None
        seen = view.lookup(NUMBERS, self.task.keys[0])
        number = view.get(seen.pointer, Box).number if seen else 0
        return view.new_id(), Box(number + self.task.amount)

    def apply(self, state: State, prepared: object) -> int:
        view = _StateView(state, prepared)
        try:
            answer = self.task.run(view)
        except Refused:
            raise CommitFailedError(f"refused: {self.task.kind}") from None
        self._log(view, answer)
        return answer

    def _log(self, view: _StateView, answer: int) -> None:
        result = _encode((self.request, answer))
        summary = {}
        if self.writes_file and view.before:
            location = f"{self.request}/{view.after[min(view.before)]}"
            view.state.write_file(location, result)
            summary["file"] = location
        for key, before in view.before.items():
            entry = LogEntry(
                self.operation.id,
                self.operation.principal,
                0,
                self.task.kind,
                self.request,
                key,
                before,
                view.after[key],
                summary,
                result,
            )
            view.state.log(entry)

    def repeat(self, state: State, entries: list[LogEntry]) -> int:
        return decode_result(entries[-1].result)[1]


class _StateView:
    """The view of the product: boxes in an index. It records the boxes before and after the task for the log."""

    def __init__(self, state: State, prepared: object) -> None:
        self.state = state
        self.before: dict[bytes, int] = {}
        self.after: dict[bytes, int] = {}
        self._prepared = prepared

    def get(self, key: bytes) -> int | None:
        found = self.state.lookup(NUMBERS, key)
        return self.state.get(found.pointer, Box).number if found else None

    def scan(self, start: bytes, end: bytes) -> list[bytes]:
        return [key for key, _ in self.state.scan(NUMBERS, start, end)]

    def put(self, key: bytes, number: int) -> None:
        self._note(key)
        if isinstance(self._prepared, tuple):
            id, box = self._prepared
            if box.number != number:
                raise PrepareAgain
            self.state.add_all([(id, box)])
        else:
            id = self.state.add(Box(number))
        self.after[key] = id
        self.state.put(NUMBERS, key, Entry(id))

    def remove(self, key: bytes) -> None:
        self._note(key)
        self.after[key] = 0
        self.state.remove(NUMBERS, key)

    def _note(self, key: bytes) -> None:
        if key not in self.before:
            found = self.state.lookup(NUMBERS, key)
            self.before[key] = found.pointer if found else 0
