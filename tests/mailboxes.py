"""A mailbox in memory, for tests that simulate several processes in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polaris_spark.clock import Clock
from polaris_spark.commits.mailbox import MOST_BYTES


class Office:
    """The mailboxes of all processes, by node number."""

    def __init__(self, loses: Callable[[], bool] = lambda: False, *, answers: bool = True) -> None:
        """
        Args:
            loses: whether the next message is lost.
            answers: whether answers are delivered at all.
        """
        self.loses = loses
        self.answers = answers
        self.boxes: dict[int, MemoryMailbox] = {}
        self.carried = 0
        """Number of intents that were delivered."""


class MemoryMailbox:
    """The mailbox of one process."""

    def __init__(self, office: Office, node: Callable[[], int], clock: Clock) -> None:
        self._office = office
        self._node = node
        self._clock = clock
        self._received: dict[int, bytes] = {}
        self._answers: dict[int, bytes] = {}
        self._heard: set[int] = set()

    def open(self) -> None:
        """Let other processes reach this process under its current node number."""
        self._office.boxes[self._node()] = self

    def send(self, node: int, id: int, intent: bytes) -> bool:
        self.open()
        other = self._office.boxes.get(node)
        if other is None:
            return False
        if not intent or len(intent) > MOST_BYTES:
            other._heard.discard(self._node())
            return False
        if not self._office.loses():
            self._office.carried += 1
            other._received[id] = intent
            other._heard.add(self._node())
        return True

    def answer(self, node: int, id: int, answer: bytes) -> None:
        other = self._office.boxes.get(node)
        if other is not None and id and self._office.answers and not self._office.loses():
            other._answers[id] = answer

    def received(self, ids: Iterable[int]) -> dict[int, bytes]:
        return {id: self._received[id] for id in ids if id in self._received}

    def take_answer(self, id: int) -> bytes | None:
        return self._answers.pop(id, None)

    def remove(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._received.pop(id, None)

    def is_near(self, node: int) -> bool:
        return node in self._heard

    def wait(self, ms: float) -> None:
        self.open()
        self._clock.sleep_ms(ms)
