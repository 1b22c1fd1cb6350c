"""Operations of simulated clients on a reference: small programs that read and change numbers by key.

The same programs run on the product and on a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

State = dict[bytes, int]
"""The model: the number at each key."""


class Refused(Exception):  # noqa: N818  # an answer: a requirement does not hold
    """A requirement of the program does not hold; the program has no effect."""


class View(Protocol):
    """The data that a program reads and changes."""

    def get(self, key: bytes) -> int | None:
        """Return the number at `key`; None if there is none."""
        ...

    def scan(self, start: bytes, end: bytes) -> list[bytes]:
        """Return the keys with numbers, from `start` (included) to `end` (excluded), in order."""
        ...

    def put(self, key: bytes, number: int) -> None: ...

    def remove(self, key: bytes) -> None: ...


class DictView:
    """The view of the model: a dictionary that is changed in place."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.changed: dict[bytes, int | None] = {}

    def get(self, key: bytes) -> int | None:
        return self.state.get(key)

    def scan(self, start: bytes, end: bytes) -> list[bytes]:
        return sorted(key for key in self.state if start <= key < end)

    def put(self, key: bytes, number: int) -> None:
        self.state[key] = self.changed[key] = number

    def remove(self, key: bytes) -> None:
        self.state.pop(key, None)
        self.changed[key] = None


class Task(NamedTuple):
    """One program with its arguments. In the same state, a task always has the same result."""

    kind: str
    keys: tuple[bytes, ...]
    amount: int = 1
    expect: int | None = None

    def run(self, view: View) -> int:
        """Run the task; return its answer.

        Raises:
            Refused: a requirement does not hold.
        """
        return _PROGRAMS[self.kind](self, view)


def outcome(task: Task, state: State) -> tuple[str, int, State]:
    """Return the result of a task in the model: `done` or `refused`, the answer, and the new state."""
    view = DictView(dict(state))
    try:
        return "done", task.run(view), view.state
    except Refused:
        return "refused", 0, state


def _add(task: Task, view: View) -> int:
    """Increment a number; refuse if the number is not the expected one."""
    key = task.keys[0]
    number = view.get(key) or 0
    if task.expect is not None and number != task.expect:
        raise Refused
    view.put(key, number + task.amount)
    return number + task.amount


def _fill(task: Task, view: View) -> int:
    """Set a number; change nothing if the key already has this number."""
    if view.get(task.keys[0]) != task.amount:
        view.put(task.keys[0], task.amount)
    return task.amount


def _remove(task: Task, view: View) -> int:
    """Remove a number; refuse if there is none."""
    number = view.get(task.keys[0])
    if number is None:
        raise Refused
    view.remove(task.keys[0])
    return number


def _move(task: Task, view: View) -> int:
    """Move an amount from one number to another; refuse if the first number is too small."""
    source, target = task.keys
    available = view.get(source) or 0
    if available < task.amount:
        raise Refused
    view.put(source, available - task.amount)
    if source != target:
        view.put(target, (view.get(target) or 0) + task.amount)
    return available - task.amount


def _spread(task: Task, view: View) -> int:
    """Set many numbers."""
    for key in task.keys:
        view.put(key, task.amount)
    return len(task.keys)


def _clear(task: Task, view: View) -> int:
    """Remove every number in a range of keys."""
    gone = view.scan(*task.keys)
    for key in gone:
        view.remove(key)
    return len(gone)


def _count(task: Task, view: View) -> int:
    """Store the count of numbers in a range of keys at another key."""
    number = len(view.scan(task.keys[0], task.keys[1]))
    view.put(task.keys[2], number)
    return number


def _spoil(task: Task, view: View) -> int:
    """Change several numbers, then refuse."""
    for key in task.keys:
        view.put(key, -1)
    view.remove(task.keys[0])
    raise Refused


_PROGRAMS: dict[str, Callable[[Task, View], int]] = {
    "add": _add,
    "prepared add": _add,
    "fill": _fill,
    "remove": _remove,
    "prepared remove": _remove,
    "move": _move,
    "spread": _spread,
    "clear": _clear,
    "count": _count,
    "spoil": _spoil,
}
