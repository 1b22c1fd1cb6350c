"""The demo from end to end, as a process of its own: the main job on the real data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.programs

PROGRAM = [sys.executable, "-c", "from polaris_spark.cli import main; main()"]


class Done(NamedTuple):
    """A demo that has run."""

    directory: Path
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The demo, run once."""
    directory = tmp_path_factory.mktemp("demo") / "new"
    command = [*PROGRAM, "demo", "--directory", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    return Done(directory, done.returncode, done.stdout, done.stderr)


def test_all_its_figures_agree_with_pandas(demo: Done) -> None:
    assert demo.code == 0, demo.out[-6_000:] + demo.err[-2_000:]
    assert "figures agree with pandas on the same data" in demo.out
    assert "✗" not in demo.out


def test_it_says_nothing_on_standard_error(demo: Done) -> None:
    assert demo.err == ""


def test_it_leaves_store_picture_and_script(demo: Done) -> None:
    left = {path.name for path in demo.directory.iterdir()}
    assert {"catalog.db", "demo.png", "spark-sql.sh", "warehouse"} <= left
    assert (demo.directory / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_commands_that_it_names_show_what_it_left(demo: Done) -> None:
    commands = [
        line.strip() for line in demo.out.splitlines() if "polaris-spark " in line and "sqlite:" in line
    ]
    named = [line[line.index("polaris-spark ") :].split()[1:] for line in commands if "demo:" not in line]
    assert [words[0] for words in named] == ["log", "tables", "info"]
    for words in named:
        shown = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout
