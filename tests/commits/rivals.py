"""Two processes that compete for one reference, for tests of intents."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polaris_spark.backends.base import Backend
from polaris_spark.clock import ManualClock
from polaris_spark.commits import log
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.decider import Decider
from polaris_spark.commits.rows import Head
from polaris_spark.commits.state import State

from .support import Add, committer


class Pausing(ManualClock):
    """A clock whose pauses call the next function of `meanwhile`, as if another process acted."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []

    def sleep_ms(self, duration: float) -> None:
        super().sleep_ms(duration)
        if self.meanwhile:
            self.meanwhile.pop(0)()


class _Overtaken(Add):
    """A change that another process overtakes twice."""

    def __init__(self, other: Committer) -> None:
        super().__init__("warm")
        self.other = other

    def apply(self, state: State, prepared: object) -> int:
        if self.runs < 2:
            self.other.commit(Add("warm"))
        return super().apply(state, prepared)


def compete(a: Committer, b: Committer, clock: Pausing) -> None:
    """Let two processes compete, until both have slots. `b` makes the newest commit.

    Args:
        clock: clock of `a`.
    """
    clock.meanwhile = [lambda: b.commit(Add("warm"))]
    a.commit(_Overtaken(b))
    b.commit(Add("warm"))


class Rivals:
    """Two processes that compete for one reference. `b` made the newest commit, and both have slots."""

    def __init__(self, backend: Backend, **settings: object) -> None:
        self.backend = backend
        self.clock = Pausing()
        self.a = committer(backend, clock=self.clock, **settings)
        self.b = committer(backend, office=settings.get("office"))
        compete(self.a, self.b, self.clock)
        assert len(self.head.slots) == 2

    @property
    def head(self) -> Head:
        return committer(self.backend).read().head

    def meanwhile(self, *acts: Callable[[], object]) -> None:
        """Call these functions, one at each poll, while `a` waits for the decision about its intent."""
        self.clock.meanwhile += acts

    def commits(self) -> list[list[str]]:
        """Return the keys that each commit changed, oldest first, without the commits that set up the competition."""
        head = committer(self.backend).read()
        found: dict[int, list[str]] = {}
        for _, commit, _, entry in log.entries(head.store, head.head):
            if entry.key != b"warm":
                found.setdefault(commit.number, []).insert(0, entry.key.decode())
        return [found[number] for number in sorted(found)]


def _overtake(rivals: Rivals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit from `b` like a release without intents."""
    with monkeypatch.context() as patched:
        patched.setattr(Decider, "decided", lambda self, applied, decision, slots: slots)
        rivals.b.commit(Add("same", 10))
