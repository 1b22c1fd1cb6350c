"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


SETTINGS = """
spark.sql.shuffle.partitions 2
spark.ui.enabled false
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
"""
"""What suits a small machine; the examples themselves leave Spark's defaults alone."""


def run(directory: Path, *command: str) -> str:
    """What a program prints that ends well."""
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
    return done.stdout


def test_the_program_and_the_inspection_of_what_it_left(tmp_path: Path) -> None:
    assert "coffee" in run(tmp_path, sys.executable, str(ROOT / "examples" / "pyspark_program.py"))
    inspected = run(tmp_path, sys.executable, str(ROOT / "examples" / "inspect_catalog.py"))
    assert "inspector" in inspected
    assert "rename" not in inspected


def test_spark_sql_by_configuration_alone(tmp_path: Path) -> None:
    statements = "CREATE NAMESPACE shop; CREATE TABLE shop.t AS SELECT 7 AS n; SELECT n * 6 FROM shop.t"
    assert "42" in run(tmp_path, str(ROOT / "examples" / "spark_sql.sh"), "-e", statements).splitlines()
