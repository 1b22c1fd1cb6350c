"""The demo as a new user runs it: from a wheel, in a new environment, without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from polaris_spark.spark.session import core_jar, jar

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.programs


def run(*command: object, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program that must succeed."""
    environment = {**os.environ, **variables}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-3_000:]
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the source distribution, with an `mvn` on the path that fails."""
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


class Demo(NamedTuple):
    """A finished run of the demo."""

    program: Path
    directory: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def demo(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo, run once from the wheel in a new environment."""
    directory = tmp_path_factory.mktemp("demo")
    run(sys.executable, "-m", "venv", "environment", directory=directory)
    python = directory / "environment" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", f"{wheel}[demo]", directory=directory)
    program = python.with_name("polaris-spark")
    done = run(program, "demo", "--directory", "new", directory=directory, PYSPARK_PYTHON=str(python))
    return Demo(program, directory / "new", done.stdout, done.stderr)


def test_the_wheel_contains_the_package_and_its_jars_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {name for name in names if name.endswith(".jar")}
    assert packaged == {f"polaris_spark/jars/{Path(one).name}" for one in (jar(), core_jar())}
    tops = {name.split("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == {
        "polaris_spark",
        "pyspark_polaris.py",
    }


def test_all_its_figures_agree_with_pandas(demo: Demo) -> None:
    assert "figures agree with pandas on the same data" in demo.out
    assert "✗" not in demo.out


def test_the_demo_writes_nothing_to_standard_error(demo: Demo) -> None:
    assert demo.err == ""


def test_the_demo_leaves_a_store_a_picture_and_a_script(demo: Demo) -> None:
    left = {path.name for path in demo.directory.iterdir()}
    assert {"catalog.db", "demo.png", "spark-sql.sh", "warehouse"} <= left
    assert (demo.directory / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_commands_that_it_names_show_what_it_left(demo: Demo) -> None:
    commands = [
        line.strip() for line in demo.out.splitlines() if "polaris-spark " in line and "sqlite:" in line
    ]
    named = [line[line.index("polaris-spark ") :].split()[1:] for line in commands if "demo:" not in line]
    assert [words[0] for words in named] == ["log", "tables", "info"]
    for words in named:
        shown = run(demo.program, *words, directory=demo.directory)
        assert shown.stderr == ""
        assert shown.stdout
