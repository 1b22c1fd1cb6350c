"""Tests with a fault in the rules of incremental refreshes: a query of a shape that uses the rule shows each fault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest
from pyspark.sql import SparkSession

from polaris_spark.spark.session import jar
from tests.spark.planted_faults import FAULTS
from tests.spark.query_shapes import SHAPES

SOURCES = Path(__file__).parents[2] / "jvm-shim/src/main/java/io/polarisspark/incremental"
SHADED = "org.apache.iceberg.shaded."
"""What the build puts before the names of Jackson's packages, to use the copy of Jackson in Iceberg's jar."""
TIMEOUT_S = 600


def found(tmp_path: Path, shapes: tuple[str, ...], packed: Path) -> str:
    """What a session with this jar reports about refreshes of queries of these shapes."""
    command = [sys.executable, "-m", "tests.spark.refresh_shapes", str(tmp_path), str(packed), *shapes]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=Path(__file__).parents[2],
        env={
            name: text for name, text in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"
        },  # it has the right jar
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.strip().splitlines()[-1]


def packed(tmp_path: Path, changed: Mapping[str, str]) -> Path:
    """Build a jar like that of the package, with changed sources."""
    sources, classes = tmp_path / "sources", tmp_path / "classes"
    sources.mkdir()
    classes.mkdir()
    for source in SOURCES.glob("*.java"):
        text = changed.get(source.stem, source.read_text())
        (sources / source.name).write_text(text.replace(" com.fasterxml.", f" {SHADED}com.fasterxml."))
    javac = shutil.which("javac")
    assert javac, "this test needs a Java compiler"
    command = [javac, "-nowarn", "-cp", class_path(), "-d", str(classes), *map(str, sources.glob("*.java"))]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    made = {str(path.relative_to(classes)): path for path in classes.rglob("*.class")}
    result = tmp_path / "faulty.jar"
    with ZipFile(jar()) as before, ZipFile(result, "w") as after:
        for name in before.namelist():
            if not name.startswith("io/polarisspark/incremental/"):
                after.writestr(name, before.read(name))
        for name, path in made.items():
            after.write(path, name)
    return result


@pytest.mark.parametrize("name", list(FAULTS))
def test_each_fault_fits_the_source(name: str) -> None:
    fault = FAULTS[name]
    text = (SOURCES / f"{fault.file}.java").read_text()
    assert text.count(fault.old) == 1, "the fault must be adapted to the source"
    assert set(fault.shapes) <= SHAPES.keys()


@pytest.mark.exhaustive
@pytest.mark.spark
def test_without_a_fault_all_these_shapes_are_right(first_session: SparkSession, tmp_path: Path) -> None:
    shapes = tuple(dict.fromkeys(shape for fault in FAULTS.values() for shape in fault.shapes))
    (tmp_path / "catalog").mkdir()
    assert found(tmp_path / "catalog", shapes, packed(tmp_path, {})) == "right"


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.parametrize("name", list(FAULTS))
def test_a_planted_fault_is_found(first_session: SparkSession, tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    text = (SOURCES / f"{fault.file}.java").read_text()
    faulty = packed(tmp_path, {fault.file: text.replace(fault.old, fault.new)})
    (tmp_path / "catalog").mkdir()
    assert found(tmp_path / "catalog", fault.shapes, faulty).startswith("wrong: ")


def class_path() -> str:
    """The class path of Spark, Iceberg and this package."""
    import pyspark

    of_spark = Path(pyspark.__file__).parent / "jars" / "*"
    iceberg = next(Path.home().glob(".ivy2*/jars/*iceberg-spark-runtime-4.1*.jar"))
    return os.pathsep.join([str(of_spark), str(iceberg), jar()])
