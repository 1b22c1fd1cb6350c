"""Several processes that commit to one store; what is killed is replaced."""

from __future__ import annotations

import random
import time
from itertools import count
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.faults.checking import acknowledged
from tests.faults.working import PRINCIPAL, Plan, start
from tests.rest.client import connect

TABLES: Final = ("t0", "t1", "t2")


class Workers:
    """Processes that commit to one store; what is killed is replaced."""

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

    def start(self) -> int:
        """One more process; its number."""
        number = next(self._numbers)
        self.running[number] = start(Plan(self.uri, self.folder, number, self.seed, TABLES))
        return number

    def wait_for(self, commits: int) -> None:
        """Wait until each process that runs now was told of so many commits more."""
        goals = {number: acknowledged(self.folder, number) + commits for number in self.running}
        for number, goal in goals.items():
            wait_until(
                lambda number=number, goal=goal: (  # type: ignore[misc]  # bound at once
                    acknowledged(self.folder, number) >= goal or not self.running[number].is_alive()
                ),
                f"process {number} commits",
            )
            assert self.running[number].is_alive(), self.tail(number)

    def kill_one(self) -> int:
        """Kill a process at a random moment and start another; the number of the dead one."""
        time.sleep(self.rng.uniform(0.0, 0.25))
        victim = self.rng.choice(sorted(self.running))
        process = self.running.pop(victim)
        process.kill()
        process.join()
        assert process.exitcode == -9, self.tail(victim)
        self.start()
        return victim

    def stop(self) -> None:
        """Let all processes end in good order."""
        (self.folder / "stop").touch()
        for number, process in self.running.items():
            process.join(PATIENCE_S)
            assert process.exitcode == 0, self.tail(number)

    def kill_all(self) -> None:
        """Leave nothing behind, whatever happened."""
        for process in self.running.values():
            process.kill()
            process.join()

    def tail(self, number: int) -> str:
        """The end of a journal, for messages."""
        path = self.folder / f"journal-{number}"
        return path.read_text()[-2_000:] if path.exists() else "no journal"
