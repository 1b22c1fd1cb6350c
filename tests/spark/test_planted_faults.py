"""Each planted fault in the rules of incremental refreshes is found by a query of a shape that uses the rule."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polaris_spark.spark.session import jar
from tests.spark.planted_faults import FAULTS

pytestmark = [pytest.mark.long, pytest.mark.spark]
SOURCES = Path(__file__).parents[2] / "jvm-shim/src/main/java/io/polarisspark/incremental"
TIMEOUT_S = 600


def found(tmp_path: Path, shapes: tuple[str, ...], classes: Path) -> str:
    """What a session with these classes reports about refreshes of queries of these shapes."""
    command = [sys.executable, "-m", "tests.spark.refresh_shapes", str(tmp_path), str(classes), *shapes]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_planted_fault_is_found(first_session: SparkSession, tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    text = (SOURCES / f"{fault.file}.java").read_text()
    assert text.count(fault.old) == 1, "the fault must be adapted to the source"
    source = tmp_path / "io/polarisspark/incremental" / f"{fault.file}.java"
    source.parent.mkdir(parents=True)
    source.write_text(text.replace(fault.old, fault.new))
    classes = tmp_path / "classes"
    classes.mkdir()
    javac = shutil.which("javac")
    assert javac, "this test needs a Java compiler"
    subprocess.run(
        [javac, "-nowarn", "-cp", class_path(), "-d", str(classes), str(source)],
        check=True,
        timeout=TIMEOUT_S,
    )
    (tmp_path / "catalog").mkdir()
    assert found(tmp_path / "catalog", fault.shapes, classes).startswith("wrong: ")


def class_path() -> str:
    """The class path of Spark, Iceberg and this package."""
    import pyspark

    of_spark = Path(pyspark.__file__).parent / "jars" / "*"
    iceberg = next(Path.home().glob(".ivy2*/jars/*iceberg-spark-runtime-4.1*.jar"))
    return os.pathsep.join([str(of_spark), str(iceberg), jar()])
