"""What simulated clients do to a reference: small programs on numbers by key, which run on the product and on a
dictionary alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

State = dict[bytes, int]
"""The model: what every key holds."""


class Refused(Exception):  # noqa: N818  # an answer: a requirement does not hold
    """A requirement of the program does not hold; nothing of it is done."""


class View(Protocol):
    """What a program sees and changes."""

    def get(self, key: bytes) -> int | None:
        """The number at `key`; None if there is none."""
        ...

    def scan(self, start: bytes, end: bytes) -> list[bytes]:
        """Keys with numbers, from `start` on and before `end`, in order."""
        ...

    def put(self, key: bytes, number: int) -> None: ...

    def remove(self, key: bytes) -> None: ...


class DictView:
    """The model's view: a dictionary that is changed in place."""

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
    """One program with its arguments: the same task gives the same in the same state."""

    kind: str
    keys: tuple[bytes, ...]
    amount: int = 1
    expect: int | None = None

    def run(self, view: View) -> int:
        """Do it; the answer.

        Raises:
            Refused: a requirement does not hold.
        """
        return _PROGRAMS[self.kind](self, view)


def outcome(task: Task, state: State) -> tuple[str, int, State]:
    """What the model says to a task: `done` or `refused`, the answer, and the state afterwards."""
    view = DictView(dict(state))
    try:
        return "done", task.run(view), view.state
    except Refused:
        return "refused", 0, state


def _add(task: Task, view: View) -> int:
    """Increment a number, if it is what was expected."""
    key = task.keys[0]
    number = view.get(key) or 0
    if task.expect is not None and number != task.expect:
        raise Refused
    view.put(key, number + task.amount)
    return number + task.amount


def _fill(task: Task, view: View) -> int:
    """Set a number; nothing changes if it is so."""
    if view.get(task.keys[0]) != task.amount:
        view.put(task.keys[0], task.amount)
    return task.amount


def _remove(task: Task, view: View) -> int:
    """Remove a number that must be there."""
    number = view.get(task.keys[0])
    if number is None:
        raise Refused
    view.remove(task.keys[0])
    return number


def _move(task: Task, view: View) -> int:
    """Take from one number what another gets; there must be enough."""
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
    """Remove every number of a range."""
    gone = view.scan(*task.keys)
    for key in gone:
        view.remove(key)
    return len(gone)


def _count(task: Task, view: View) -> int:
    """Note how many numbers a range has."""
    number = len(view.scan(task.keys[0], task.keys[1]))
    view.put(task.keys[2], number)
    return number


def _spoil(task: Task, view: View) -> int:
    """Change much, then find out that it must not be."""
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
