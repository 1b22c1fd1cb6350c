"""The benchmark command: every part runs and its files are readable. The figures themselves are not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from benchmarks.parts import PARTS

IN_PROCESS = (
    "commits",
    "contention",
    "loading",
    "wide",
    "listing",
    "growth",
    "branches",
    "transactions",
    "distant",
    "pyiceberg",
    "earlier",
)
CHECKOUT = Path(__file__).parents[2]


def run(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(output)]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def found(output: Path, *arguments: str) -> dict[str, Any]:
    """Run the command, check that it succeeded, and return the JSON that it wrote."""
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


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One quick run of the parts without a JVM, and its files."""
    output = tmp_path_factory.mktemp("bench")
    return output, found(output, *IN_PROCESS, "--against", str(CHECKOUT))


@pytest.mark.programs
def test_every_part_that_needs_no_jvm_finds_figures(quick):
    _, written = quick
    assert set(written["parts"]) == set(IN_PROCESS)
    for part in IN_PROCESS:
        assert written["parts"][part], part
    assert all(rate >= 0 for rate in rates(written))
    assert any(rate > 0 for rate in rates(written))


@pytest.mark.programs
def test_the_plot_can_be_read_and_shows_something(quick):
    output, _ = quick
    picture = matplotlib.image.imread(output / "figures.png")
    assert picture.shape[0] > 100
    assert picture.std() > 0.01


@pytest.mark.programs
def test_a_run_states_the_machine_and_the_durability_of_both_sides(quick):
    _, written = quick
    stated = {"processor", "memory", "system", "disk", "Python", "Java", "SQLite", "PostgreSQL"}
    assert set(written["machine"]) >= stated
    assert "synchronous=FULL" in written["durability"]["polaris_spark on SQLite"]
    assert "synchronous=FULL" in written["durability"]["pyiceberg SqlCatalog on SQLite"]
    assert "fsync=on, synchronous_commit=on" in written["durability"]["all on PostgreSQL"]
    assert written["settings"]["rounds"] == 1


@pytest.mark.programs
def test_no_writer_of_polaris_spark_fails(quick):
    _, written = quick
    asked = [f for part in written["parts"].values() for f in part if "none failed" in f["bar"]]
    assert len(asked) >= 5
    for figure in asked:
        assert figure["samples"]["ours"]["failures"] == 0, figure["what"]


@pytest.mark.programs
def test_a_part_that_needs_a_jvm_finds_figures(tmp_path):
    assert found(tmp_path, "bridge")["parts"]["bridge"]


@pytest.mark.programs
@pytest.mark.exhaustive
def test_more_parts_that_need_a_jvm_find_figures_and_name_what_they_leave_out(tmp_path):
    parts = ("first-query", "imports", "jdbc", "peers", "scan", "sweep", "views")
    written = found(tmp_path, *parts)
    assert all(written["parts"][part] for part in parts if part != "peers")
    (grid,) = written["grids"].values()
    assert {"polaris_spark, SQLite, never", "Iceberg JdbcCatalog, PostgreSQL"} < set(grid)
    assert all(len(workloads) == 8 for workloads in grid.values())
    assert "quick" in written["left-out"]["Nessie 0.99, in memory"]


@pytest.mark.programs
@pytest.mark.exhaustive
def test_refreshes_of_a_materialized_view_are_measured(tmp_path):
    written = found(tmp_path, "refresh")
    assert len(written["parts"]["refresh"]) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), f"known are {', '.join(PARTS)}"),
        (("--rounds", "0"), "--rounds must be positive"),
        (("earlier",), "needs --against"),
    ],
)
def test_benchmarks_that_cannot_be_run_are_refused(tmp_path, arguments, message):
    done = run(tmp_path / "none", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "none").exists()
