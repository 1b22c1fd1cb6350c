"""The examples run without changes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]


SETTINGS = """
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
"""
"""What suits a small machine; the examples themselves leave Spark's defaults alone."""


def run(directory: Path, *command: str) -> str:
    """Run a program that must succeed, and return its output."""
    settings = directory / "conf"
    settings.mkdir(exist_ok=True)
    (settings / "spark-defaults.conf").write_text(SETTINGS)
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": str(settings),
        "PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-6_000:]
    # Not even when the processes end.
    assert "Traceback" not in done.stderr, done.stderr[-6_000:]
    return done.stdout


def test_the_program_and_the_inspection_of_what_it_left(tmp_path: Path) -> None:
    assert "coffee" in run(tmp_path, sys.executable, str(ROOT / "examples" / "pyspark_program.py"))
    inspected = run(tmp_path, sys.executable, str(ROOT / "examples" / "inspect_catalog.py"))
    assert "inspector" in inspected
    assert "rename" not in inspected
    audited = run(tmp_path, sys.executable, str(ROOT / "examples" / "audit_stream.py"))
    # What others did before, and nothing of its own.
    assert "orders" in audited
    assert "inspector" in audited
    assert "auditor" not in audited


def test_views_over_flights_are_refreshed_incrementally(tmp_path: Path) -> None:
    printed = run(
        tmp_path, sys.executable, str(ROOT / "examples" / "flights.py"), "flights", "1", "flights.svg"
    )
    assert "incremental" in printed


def test_flights_are_published_when_all_checks_hold(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, str(ROOT / "examples" / "write_audit_publish.py"), "flights")
    shown = dict(line.split(": ", 1) for line in printed.splitlines() if ": {" in line)
    loaded = ast.literal_eval(shown["On the branch load"])
    assert loaded["flights"] > 0
    nothing = dict.fromkeys(loaded, 0)
    assert ast.literal_eval(shown["On main, before"]) == nothing
    assert ast.literal_eval(shown["On main, after the merge that was refused"]) == nothing
    published = ast.literal_eval(shown["On main, after all checks held"])
    assert published == {**loaded, "airlines": loaded["airlines"] + 1}


def test_spark_sql_by_configuration_alone(tmp_path: Path) -> None:
    statements = """
        CREATE NAMESPACE shop;
        CREATE TABLE shop.t AS SELECT 7 AS n;
        SELECT n * 6 FROM shop.t;
        CALL polaris.system.export_metadata(table => 'shop.t');
        CALL system.storage_summary()
    """
    lines = run(tmp_path, str(ROOT / "examples" / "spark_sql.sh"), "-e", statements).splitlines()
    assert "42" in lines
    assert [line.split("\t")[1::2] for line in lines if line.startswith("shop.t\t")] == [
        ["table", "unchanged"]
    ]
    assert [line.split("\t")[1:4] for line in lines if line.startswith("table\t")] == [
        ["0", "under 1 hour", "1"]
    ]
