"""Two processes that compete for one reference, for tests of intents."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polaris_spark.backends.base import Backend
from polaris_spark.clock import ManualClock
from polaris_spark.commits import log
from polaris_spark.commits.decider import Decider
from polaris_spark.commits.rows import Head

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


class Rivals:
    """Two processes that compete for one reference. `b` made the newest commit, and both have slots."""

    def __init__(self, backend: Backend, **settings: object) -> None:
        self.backend = backend
        self.clock = Pausing()
        self.a = committer(backend, clock=self.clock, **settings)
        self.b = committer(backend, office=settings.get("office"))
        for one in (self.a, self.b, self.a, self.b):  # each finds that the other was first
            one.commit(Add("warm"))
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
