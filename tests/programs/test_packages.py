"""The wheel and the source distribution, which are built without Maven and used away from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from polaris_spark.spark.session import core_jar, jar

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.programs


def run(*command: object, directory: Path, **variables: str) -> str:
    """What a program prints that succeeds."""
    environment = {**os.environ, **variables}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-3_000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source distribution, with a `mvn` that fails."""
    directory = tmp_path_factory.mktemp("packages")
    maven = directory / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\nexit 1\n")
    maven.chmod(0o755)
    assert jar()
    assert core_jar()
    path = f"{maven.parent}{os.pathsep}{os.environ['PATH']}"
    run(sys.executable, "-m", "build", "--outdir", directory / "dist", ROOT, directory=directory, PATH=path)
    (found,) = (directory / "dist").glob("*.whl")
    assert list((directory / "dist").glob("*.tar.gz"))
    return found


def test_the_wheel_has_the_package_and_its_jars_and_nothing_of_the_workshop(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {name for name in names if name.endswith(".jar")}
    assert packaged == {f"polaris_spark/jars/{Path(one).name}" for one in (jar(), core_jar())}
    tops = {name.split("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {
        "polaris_spark",
        "pyspark_polaris.py",
    }


def test_the_wheel_runs_the_demo_in_a_new_environment(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "environment", directory=tmp_path)
    python = tmp_path / "environment" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[demo]", directory=tmp_path)
    program = python.with_name("polaris-spark")
    shown = run(program, "demo", "--directory", "shop", directory=tmp_path, PYSPARK_PYTHON=str(python))
    assert "figures agree with pandas on the same data" in shown
    assert "\u2717" not in shown
