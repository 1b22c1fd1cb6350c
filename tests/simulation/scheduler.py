"""Many threads of many processes on one thread of the operating system, in simulated time.

Each simulated thread is a greenlet. One greenlet runs at a time, until it waits at its clock; then the greenlet with
the earliest due time runs. Simulated time passes only between turns, so a simulated day costs only the work done in it.
The run depends only on the order in which greenlets wait, so it is the same in every run of the same seed.
"""

from __future__ import annotations

import contextlib
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from types import TracebackType

from polaris_spark.clock import EPOCH_MS
from polaris_spark.errors import MissingLibraryError
from polaris_spark.testing.faults import ProcessDied

try:
    from greenlet import getcurrent, greenlet
except ImportError as error:
    raise MissingLibraryError(
        "the simulation needs the library greenlet; install it with: pip install 'polaris-spark[test]'"
    ) from error

START_MS = EPOCH_MS + 600 * 86_400_000
"""Start time of every simulation, in milliseconds since 1970."""


class StuckError(Exception):
    """No thread can continue, or the threads run without end."""


class _Wake:
    """An event that resumes one waiting greenlet, once."""

    __slots__ = ("greenlet", "live", "timed_out")

    def __init__(self, waiting: greenlet) -> None:
        self.greenlet = waiting
        self.live = True
        self.timed_out = False


class Scheduler:
    """Simulated time, and the queue of greenlets to run."""

    def __init__(self, *, most_turns: int = 200_000) -> None:
        """
        Args:
            most_turns: maximum number of turns; more turns mean that the threads run without end.
        """
        self.now = 0.0
        """Simulated time since the start, in milliseconds."""
        self.turns = 0
        self._most_turns = most_turns
        self._queue: list[tuple[float, int, _Wake, bool]] = []
        self._numbers = count()
        self._hub = getcurrent()
        self._threads: list[tuple[greenlet, SimulatedClock]] = []

    def spawn(self, run: Callable[[], None], clock: SimulatedClock, *, after_ms: float = 0.0) -> None:
        """Start a thread of the process that has this clock.

        The thread ends without an error when its process dies. Any other exception ends the simulation.
        """

        def guarded() -> None:
            try:
                run()
            except ProcessDied:
                return

        thread = greenlet(guarded, parent=self._hub)
        self._threads.append((thread, clock))
        self._push(after_ms, _Wake(thread), timer=False)

    def run(self) -> None:
        """Run threads until the queue is empty.

        Raises:
            StuckError: the threads run without end.
        """
        queue = self._queue
        while queue:
            due, _, wake, timer = heapq.heappop(queue)
            if not wake.live:
                continue
            wake.live, wake.timed_out = False, timer
            self.now = max(self.now, due)
            self.turns += 1
            if self.turns > self._most_turns:
                raise StuckError(f"no end after {self.turns} turns")
            wake.greenlet.switch()

    def unfinished(self) -> int:
        """Return the number of unfinished threads of living processes. After `run`, they would wait forever."""
        return sum(not thread.dead and not clock.dead for thread, clock in self._threads)

    def end(self) -> None:
        """End every waiting thread by raising `ProcessDied` in it."""
        for thread, clock in self._threads:
            clock.dead = True
            if not thread.dead:
                with contextlib.suppress(ProcessDied):  # a thread that has not started raises it here
                    thread.throw(ProcessDied)
        self._threads.clear()
        self._queue.clear()

    def sleep(self, ms: float) -> None:
        """Make the running thread wait for `ms` milliseconds."""
        self._push(ms, _Wake(getcurrent()), timer=True)
        self._hub.switch()

    def park(self, timeout_ms: float | None = None) -> _Wake:
        """Return a wake for the running thread, which must then call `wait`. It fires after at most `timeout_ms`."""
        wake = _Wake(getcurrent())
        if timeout_ms is not None:
            self._push(timeout_ms, wake, timer=True)
        return wake

    def wait(self, wake: _Wake) -> bool:
        """Make the running thread wait for its wake; return False if the wait timed out."""
        self._hub.switch()
        return not wake.timed_out

    def resume(self, wake: _Wake) -> None:
        """Resume a parked thread, after the threads that are due now."""
        if wake.live:
            self._push(0.0, wake, timer=False)

    def _push(self, ms: float, wake: _Wake, *, timer: bool) -> None:
        heapq.heappush(self._queue, (self.now + max(0.0, ms), next(self._numbers), wake, timer))


class SimulatedClock:
    """The clock of one simulated process: the simulated time plus `skew_ms`. All waiting of threads goes through it."""

    def __init__(self, scheduler: Scheduler, *, skew_ms: float = 0.0) -> None:
        self.skew_ms = skew_ms
        """Error of the wall clock, in milliseconds. It may change at any time; the monotonic clock does not change."""
        self.dead = False
        """Whether the process has died. Its threads never continue."""
        self._scheduler = scheduler

    def now_ms(self) -> int:
        return max(EPOCH_MS, int(START_MS + self._scheduler.now + self.skew_ms))

    def monotonic_ms(self) -> float:
        return self._scheduler.now

    def elapsed_ms(self) -> float:
        return self._scheduler.now

    def sleep_ms(self, duration: float) -> None:
        self.check()
        self._scheduler.sleep(duration)
        self.check()

    def signal(self) -> SimulatedSignal:
        return SimulatedSignal(self._scheduler, self)

    def lock(self) -> AbstractContextManager[object]:
        return SimulatedLock(self._scheduler, self)

    def check(self) -> None:
        """End the running thread if its process has died meanwhile."""
        if self.dead:
            raise ProcessDied


class SimulatedSignal:
    """An implementation of `polaris_spark.clock.Signal` for simulated threads."""

    __slots__ = ("_clock", "_scheduler", "_set", "_waiting")

    def __init__(self, scheduler: Scheduler, clock: SimulatedClock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._set = False
        self._waiting: list[_Wake] = []

    def set(self) -> None:
        self._set = True
        for wake in self._waiting:
            self._scheduler.resume(wake)
        self._waiting.clear()

    def wait(self, timeout_ms: float | None = None) -> bool:
        self._clock.check()
        if self._set:
            return True
        wake = self._scheduler.park(timeout_ms)
        self._waiting.append(wake)
        self._scheduler.wait(wake)
        self._clock.check()
        return self._set


class SimulatedLock:
    """A lock for simulated threads of one process. Waiting threads are resumed in the order of their requests."""

    __slots__ = ("_clock", "_held", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler, clock: SimulatedClock) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._held = False
        self._waiting: deque[_Wake] = deque()

    def __enter__(self) -> SimulatedLock:
        self._clock.check()
        while self._held:
            wake = self._scheduler.park()
            self._waiting.append(wake)
            self._scheduler.wait(wake)
            self._clock.check()
        self._held = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
        if self._waiting:
            self._scheduler.resume(self._waiting.popleft())
