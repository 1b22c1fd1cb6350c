"""Artifacts of peers, resolved by Maven."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import as_file, files
from pathlib import Path

_SECONDS = 900


class UnavailableError(Exception):
    """A peer is not available on this machine; the message contains the reason."""


def class_path(project: str, folder: Path) -> str:
    """Return the class path of a project in the folder `java` next to this module. Missing artifacts are downloaded.

    Args:
        folder: folder into which Maven writes the class path.
    Raises:
        UnavailableError: Maven is not installed, or an artifact cannot be downloaded.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError("Maven (mvn) is not installed")
    answer = folder / f"{project}.classpath"
    with as_file(files("benchmarks") / "java" / project / "pom.xml") as pom:
        command = [
            maven,
            "-q",
            "-B",
            "-f",
            str(pom),
            "dependency:build-classpath",
            f"-Dmdep.outputFile={answer}",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"Maven took more than {_SECONDS} s to fetch it") from None
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
        raise UnavailableError(f"Maven: {lines[0][8:] if lines else done.stderr.strip()[-300:]}")
    return answer.read_text().strip()
