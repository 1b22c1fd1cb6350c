"""A standalone cluster of Spark on loopback: a master and two workers, as operators start them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark

from polaris_spark.testing.server import ReservedPort

ROOT = Path(__file__).parents[2]
SLOW_S = 180
"""How long a process may take to start on a slow machine, seconds."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "2",
    # Work begins when both executors are there, so that both have their share.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "180s",
    "spark.locality.wait": "0s",
}


class Cluster:
    """A master and two workers of one core each; `close` ends them by their process ids."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = ReservedPort()
        self.master = f"spark://127.0.0.1:{self._port.number}"
        try:
            self._start("master.Master", "--port", str(self._port.number))
            self._wait_for("master.Master", r"I have been elected leader")
            for number in range(2):
                work = folder / f"worker{number}"
                self._start("worker.Worker", "-c", "1", "-m", "1g", "-d", str(work), self.master)
            self._wait_for("master.Master", r"Registering worker", times=2)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all processes; the workers end their executors."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._port.close()

    def _start(self, kind: str, *arguments: str) -> None:
        command = [
            str(Path(pyspark.__file__).parent / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            *("--host", "127.0.0.1", "--webui-port", "0"),
            *arguments,
        ]
        environment = {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        with open(self._log(kind), "ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    env=environment,
                )
            )

    def _log(self, kind: str) -> Path:
        return self._folder / f"{kind}.log"

    def _wait_for(self, kind: str, words: str, times: int = 1) -> None:
        end = time.monotonic() + SLOW_S
        while len(re.findall(words, self._log(kind).read_text(errors="replace"))) < times:
            ended = [process.args for process in self._processes if process.poll() is not None]
            logs = [path.read_text(errors="replace")[-2_000:] for path in self._folder.glob("*.log")]
            assert not ended, f"{ended} ended: {logs}"
            assert time.monotonic() < end, logs
            time.sleep(0.05)


class ClusterDriver:
    """A driver program, `cluster_driver.py`, which uses a cluster. Requests and answers are files."""

    def __init__(self, master: str, folder: Path) -> None:
        self._folder = folder
        self._asked = 0
        command = [
            sys.executable,
            *(str(ROOT / "tests" / "spark" / "cluster_driver.py"), master, str(folder)),
        ]
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        with open(folder / "driver.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, env=environment
            )

    def ask(self, what: str, uri: str, properties: Mapping[str, str]) -> Any:
        """Call a function of the program for a store, and return its result. Raises `RuntimeError` with the program's
        error."""
        self._asked += 1
        put(self._folder / f"request-{self._asked}", {"what": what, "uri": uri, "properties": properties})
        answer = self._folder / f"answer-{self._asked}"
        end = time.monotonic() + 2 * SLOW_S
        while not answer.exists():
            log = (self._folder / "driver.log").read_text(errors="replace")[-3_000:]
            assert self._process.poll() is None, f"the driver ended: {log}"
            assert time.monotonic() < end, log
            time.sleep(0.05)
        told = json.loads(answer.read_text())
        if "error" in told:
            raise RuntimeError(told["error"])
        return told["answer"]

    def close(self) -> None:
        """Let the program end, or end it after a time-out."""
        put(self._folder / f"request-{self._asked + 1}", None)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait(60)


def put(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content))
    unfinished.rename(path)
