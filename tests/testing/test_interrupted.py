"""An interrupted test run leaves no server behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from polaris_spark.testing.waiting import PATIENCE_S, wait_until

_SLEEPER = """
import time
from pathlib import Path

def test_sleeps(server_of):
    server = server_of("s3")
    Path("{told}.new").write_text(f"{{server.pid}} {{server.directory}}")
    Path("{told}.new").rename("{told}")
    for _ in range(6_000):  # a signal that comes before a sleep has begun is seen after it
        time.sleep(0.1)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_servers_end_with_a_run_that_is_interrupted(
    tmp_path: Path, versitygw: object, how: signal.Signals
) -> None:
    told = tmp_path / "told"
    (tmp_path / "test_sleeper.py").write_text(_SLEEPER.format(told=told))
    root = Path(__file__).parents[2]
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "conftest",
            "--rootdir",
            str(tmp_path),
            "-c",
            os.devnull,
            str(tmp_path),
        ],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell ignores this signal for what it runs in the background, and processes inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_until(lambda: told.exists() or run.poll() is not None, "the server runs")
        pid, directory = told.read_text().split()
        run.send_signal(how)
        run.wait(PATIENCE_S)
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server ends")
    assert not Path(directory).exists()
