"""A backend of another package: the example passes the storage contract, and is found by its entry point only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lmdb_backend"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a process that has the example installed: its module and its entry points."""
    (points,) = re.findall(
        r'\[project\.entry-points\."polaris_spark\.backends"\]\n((?:\w+ = ".*"\n)+)',
        (EXAMPLE / "pyproject.toml").read_text(),
    )
    installed = tmp_path / "polaris_spark_lmdb-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: polaris-spark-lmdb\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[polaris_spark.backends]\n" + points.replace('"', ""))
    path = (str(tmp_path), str(EXAMPLE), str(ROOT), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


@pytest.mark.databases
def test_the_example_passes_the_storage_contract(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(EXAMPLE)]
    command += ["-p", "no:cacheprovider", "--basetemp", str(tmp_path / "tests"), str(EXAMPLE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-6_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 70
    assert "skipped" not in done.stdout
