"""The demo on every database, and what the commands that it names show afterwards."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import DATABASES, StoreOn, configured

PROGRAM = [sys.executable, "-c", "from polaris_spark.cli import main; main()"]


@pytest.mark.programs
@pytest.mark.parametrize("scheme", [scheme for scheme in DATABASES if scheme != "memory"])
def test_the_demo_runs_on_the_database_and_its_commands_show_what_it_left(
    scheme: str, store_on: StoreOn, tmp_path: Path
) -> None:
    given = configured(store_on(scheme))
    store, password = given["store"], given.get("store.password")
    environment = {**os.environ, "DEMO_PASSWORD": password or ""}
    secret = ["--password", "env:DEMO_PASSWORD"] if password else []

    def run(*words: str) -> str:
        done = subprocess.run(
            [*PROGRAM, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout[-6_000:] + done.stderr[-2_000:]
        return done.stdout

    shown = run("demo", "--store", store, *secret, "--directory", str(tmp_path / "new"))
    assert "figures agree with pandas on the same data" in shown
    assert "✗" not in shown
    assert not password or password not in shown
    named = [
        shlex.split(line)[2:] for line in shown.splitlines() if "  polaris-spark " in line and store in line
    ]
    assert [words[0] for words in named] == ["log", "tables", "info"]
    for words in named:
        assert words[1:] == [store, *secret]
        assert run(*words)
