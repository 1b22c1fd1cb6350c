"""A worker in a process of its own, whose procedure writes to a file when it begins and ends. If the file `hold`
exists, the procedure waits until it is deleted."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import polaris_spark
from polaris_spark.jobs import registry
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure
from polaris_spark.jobs.worker import Worker


def add_procedure(folder: Path) -> None:
    """Add the procedure `noted` to the registry of this process."""

    def run(call: Call, arguments: Any) -> list[tuple[int]]:
        line = f"{arguments.get('n', 0)} {os.getpid()}\n"
        with (folder / "begun").open("a") as file:
            file.write(line)
        while (folder / "hold").exists():
            call.check()
            time.sleep(0.005)
        with (folder / "done").open("a") as file:
            file.write(line)
        return [(1,)]

    known = dict(registry.procedures())
    known["noted"] = Procedure(
        name="noted",
        parameters=(Parameter("n", "INT", "a number"),),
        columns=(Column("n", "BIGINT"),),
        run=run,
        needs=(),
    )
    registry.procedures = lambda: known  # type: ignore[assignment]  # for this process only


def main(store: str, folder: Path) -> None:
    """Run a worker until this process gets SIGTERM."""
    add_procedure(folder)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with polaris_spark.connect(store=store, create=False) as session:
        Worker(session).run(stop, 0.01)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
