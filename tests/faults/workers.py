"""Several processes that commit to one store. A process that is killed is replaced."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from polaris_spark.ids import unpack
from polaris_spark.system.leases import NodeRecord
from polaris_spark.system.stores import system_references
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.faults.checking import acknowledged, events
from tests.faults.working import PRINCIPAL, Plan, start, start_earlier
from tests.rest.client import connect

TABLES: Final = ("t0", "t1", "t2")


class Workers:
    """Processes that commit to one store. A process that is killed is replaced."""

    def __init__(
        self, uri: str, folder: Path, seed: int, processes: int, calm_uri: str | None = None
    ) -> None:
        """
        Args:
            calm_uri: of the same store without trouble, to make the tables; `uri` unless given.
        """
        print(f"seed {seed}")
        self.uri, self.folder, self.seed = uri, folder, seed
        self.rng = random.Random(seed)
        self._numbers = count(1)
        client = connect(calm_uri or uri, folder / "warehouse", metadata_files="never", principal=PRINCIPAL)
        client.namespace("db")
        for name in TABLES:
            client.create(name)
        client.session.close()
        self.running: dict[int, ForkServerProcess] = {}
        for _ in range(processes):
            self.start()

    def start(self, *, knows_intents: bool = True, stops_at: str = "", by: int = signal.SIGKILL) -> int:
        """Start one more process, and return its number.

        Args:
            stops_at: step at which the process sends itself the signal `by` (`Plan.stops_at`).
        """
        number = next(self._numbers)
        plan = Plan(
            self.uri,
            self.folder,
            number,
            self.seed,
            TABLES,
            knows_intents=knows_intents,
            stops_at=stops_at,
            signal=by,
        )
        self.running[number] = start(plan)
        return number

    def start_earlier(self, checkout: Path) -> int:
        """Start one more process, with the code of an earlier checkout, and return its number."""
        number = next(self._numbers)
        plan = Plan(self.uri, self.folder, number, self.seed, TABLES)
        self.running[number] = start_earlier(plan, checkout)
        return number

    def wait_for(self, commits: int, *, but: int | None = None) -> None:
        """Wait until each process that runs now was told of this many more commits.

        Args:
            but: a process that is not waited for.
        """
        goals = {
            number: acknowledged(self.folder, number) + commits for number in self.running if number != but
        }
        for number, goal in goals.items():
            wait_until(
                lambda number=number, goal=goal: (  # type: ignore[misc]  # bound at once
                    acknowledged(self.folder, number) >= goal or not self.running[number].is_alive()
                ),
                f"process {number} commits",
            )
            assert self.running[number].is_alive(), self.tail(number)

    def leader(self) -> int:
        """Return the number of the process that made the newest commit. It also commits the intents of the others."""
        with connect(self.uri, None, create=False).session as session:
            node = unpack(session.catalog.head().head.commit).node
            found = system_references(session.connection.backend).read(f"node/{node}", NodeRecord)
        assert found is not None
        for number, process in self.running.items():
            if str(process.pid) in found.value.holder:
                return number
        return self.other()

    def other(self) -> int:
        """Return the number of any process."""
        return self.rng.choice(sorted(self.running))

    @contextmanager
    def paused(self, number: int) -> Iterator[None]:
        """Stop a process until the block ends."""
        pid = self.running[number].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self.go_on(number)

    def kill_one(self, victim: int | None = None) -> int:
        """Kill a process at a random moment and start another; the number of the dead one.

        Args:
            victim: number of the process; any process by default.
        """
        time.sleep(self.rng.uniform(0.0, 0.25))
        victim = self.other() if victim is None else victim
        self.kill(victim)
        self.start()
        return victim

    def kill(self, number: int) -> None:
        """Kill a process now."""
        process = self.running.pop(number)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, self.tail(number)

    def wait_for_stop(self, number: int) -> float:
        """Wait until a process has sent itself its signal (`start`). Return the time on the monotonic clock, in s.
        If the process was killed, it no longer counts as running."""
        stops: list[dict[str, Any]] = []

        def has_stopped() -> bool:
            lives = self.running[number].is_alive()
            stops[:] = [event for event in self._events(number) if event["event"] == "stops"]
            assert stops or lives, self.tail(number)
            return bool(stops)

        wait_until(has_stopped, f"process {number} stops", every_s=0.02)
        if stops[0]["signal"] == signal.SIGKILL:
            process = self.running.pop(number)
            process.join(PATIENCE_S)
            assert process.exitcode == -signal.SIGKILL, self.tail(number)
        return float(stops[0]["at"])

    def go_on(self, number: int) -> None:
        """Let a process continue that was stopped by SIGSTOP."""
        pid = self.running[number].pid
        assert pid is not None
        os.kill(pid, signal.SIGCONT)

    def longest_request(self, since: float, *, but: int) -> float:
        """Return the duration, in seconds, of the longest request of the running processes that has no answer yet, or
        that was answered after `since`.

        Args:
            but: a process that does not count.
        """
        now, longest = time.monotonic(), 0.0
        for number in self.running.keys() - {but}:
            sent: dict[str, float] = {}
            for event in self._events(number):
                if event["event"] == "sent":
                    sent[event["key"]] = event["at"]
                elif event.get("key") in sent:
                    begun = sent.pop(event["key"])
                    if event["at"] >= since:
                        longest = max(longest, event["at"] - begun)
            longest = max([longest, *(now - begun for begun in sent.values())])
        return longest

    def _events(self, number: int) -> Iterator[dict[str, Any]]:
        path = self.folder / f"journal-{number}"
        return events(path) if path.exists() else iter(())

    def stop(self) -> None:
        """Let all processes finish their work and end."""
        (self.folder / "stop").touch()
        for number, process in self.running.items():
            process.join(PATIENCE_S)
            assert process.exitcode == 0, self.tail(number)

    def kill_all(self) -> None:
        """Kill all processes, in any state."""
        for process in self.running.values():
            process.kill()
            process.join()

    def tail(self, number: int) -> str:
        """Return the end of a journal, for error messages."""
        path = self.folder / f"journal-{number}"
        return path.read_text()[-2_000:] if path.exists() else "no journal"
