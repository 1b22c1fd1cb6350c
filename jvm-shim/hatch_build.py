"""Build hook that builds the jars, and includes the module by which Spark finds the data source.

Wheels, editable installs and source distributions contain the jars. The hook runs Maven only if a Java source is newer
than a jar. So repeated builds, and builds from a source distribution, need neither Maven nor a JDK.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DISCOVERED_MODULE = "polaris_spark/spark/pyspark_polaris.py"


class BuildError(Exception):
    """The jar cannot be built. The message names the cause."""


class ShimBuildHook(BuildHookInterface[Any]):
    """Builds the jar before the files of a wheel are collected."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the jar if it is out of date, and map Spark's discovery module to the top level."""
        jars = self._packaged_jars()
        if self._is_out_of_date(jars):
            self._run_maven()
            self._package(jars)
        if self.target_name != "wheel":
            return
        top_level = {str(Path(self.root, DISCOVERED_MODULE)): Path(DISCOVERED_MODULE).name}
        if version == "editable":
            # An editable install finds the package by a .pth file, which cannot rename a module: copy it.
            build_data["force_include_editable"].update(top_level)
        else:
            build_data["force_include"].update(top_level)

    def clean(self, versions: list[str]) -> None:
        """Remove the jars and Maven's output."""
        for jar in self._jars().glob("*.jar"):
            jar.unlink()
        shutil.rmtree(self._shim() / "target", ignore_errors=True)

    def _shim(self) -> Path:
        return Path(self.root, "jvm-shim")

    def _jars(self) -> Path:
        return Path(self.root, "polaris_spark", "jars")

    def _packaged_jars(self) -> dict[str, Path]:
        """Return the packaged paths of Maven's jars, by file name.

        One jar is for shaded runtimes of Iceberg, the other for `iceberg-core`.
        """
        name = f"polaris-spark-shim-{self.metadata.version}"
        return {
            f"{name}-spark.jar": self._jars() / f"{name}.jar",
            f"{name}.jar": self._jars() / f"{name}-core.jar",
        }

    def _is_out_of_date(self, jars: dict[str, Path]) -> bool:
        if not all(jar.exists() for jar in jars.values()):
            return True
        sources = [self._shim() / "pom.xml", *self._shim().glob("src/main/**/*.java")]
        oldest = min(jar.stat().st_mtime for jar in jars.values())
        return max(source.stat().st_mtime for source in sources) > oldest

    def _run_maven(self) -> None:
        for program, what in (("mvn", "Maven 3.8 or newer"), ("javac", "a JDK, version 17")):
            if shutil.which(program) is None:
                raise BuildError(
                    f"Building polaris-spark from source needs {what}: '{program}' is not on the PATH. "
                    "Install it, or install polaris-spark from a wheel or a source distribution, which include jars."
                )
        command = ["mvn", "-q", "-B", f"-Drevision={self.metadata.version}", "clean", "package"]
        self.app.display_info("Building the JVM shim with Maven")
        built = subprocess.run(command, cwd=self._shim(), text=True, capture_output=True, check=False)
        if built.returncode != 0:
            raise BuildError(f"'{' '.join(command)}' failed in {self._shim()}:\n{built.stdout}{built.stderr}")

    def _package(self, jars: dict[str, Path]) -> None:
        self._jars().mkdir(exist_ok=True)
        for old in self._jars().glob("*.jar"):
            old.unlink()
        for made, packaged in jars.items():
            shutil.copyfile(self._shim() / "target" / made, packaged)
