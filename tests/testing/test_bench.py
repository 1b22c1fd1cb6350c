"""The benchmark command: that every part runs and its files can be read, whatever the figures are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from polaris_spark.testing.bench.parts import PARTS


def run(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "polaris_spark.testing.bench", "--quick", "--output", str(output)]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=600)


def found(output: Path, *arguments: str) -> dict[str, Any]:
    """What a run wrote as JSON, once it is known that it ran."""
    done = run(output, *arguments)
    assert done.returncode in (0, 1), done.stderr  # 1: a bar was missed, as tiny sizes may
    written = json.loads((output / "figures.json").read_text())
    assert written["failed"] == {}, done.stderr
    for figures in written["parts"].values():
        for figure in figures:
            assert figure["what"] in (output / "figures.md").read_text()
    return dict(written)


def rates(written: dict[str, Any]) -> list[float]:
    samples = [s for part in written["parts"].values() for f in part for s in f["samples"].values()]
    return [value for sample in samples for value in sample["values"]]


def test_every_part_in_process_finds_figures_and_writes_a_table_and_a_plot(tmp_path):
    parts = ("commits", "loading", "listing", "growth", "pyiceberg")
    written = found(tmp_path, *parts)
    assert set(written["parts"]) == set(parts)
    assert all(written["parts"][part] for part in parts)
    assert all(rate >= 0 for rate in rates(written))
    assert any(rate > 0 for rate in rates(written))
    picture = matplotlib.image.imread(tmp_path / "figures.png")
    assert picture.shape[0] > 100
    assert picture.std() > 0.01  # something is drawn


def test_a_run_states_the_machine_and_the_durability_of_both_sides(tmp_path):
    written = found(tmp_path, "commits")
    assert set(written["machine"]) >= {"processor", "memory", "system", "disk", "Python", "Java", "SQLite"}
    assert "synchronous=FULL" in written["durability"]["polaris_spark on SQLite"]
    assert "synchronous=FULL" in written["durability"]["pyiceberg SqlCatalog on SQLite"]
    assert written["settings"]["rounds"] == 1


def test_none_of_ours_fails_with_32_threads_on_one_table(tmp_path):
    written = found(tmp_path, "commits")
    (line,) = (f for f in written["parts"]["commits"] if f["what"].endswith("never, 32 threads, one table"))
    assert line["samples"]["ours"]["failures"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("nothing",), f"known are {', '.join(PARTS)}"), (("--rounds", "0"), "--rounds must be positive")],
)
def test_what_cannot_be_measured_is_refused(tmp_path, arguments, message):
    done = run(tmp_path / "none", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "none").exists()
