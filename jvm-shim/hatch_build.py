"""Build hook of the wheel: the jar for Spark, and the module by which Spark finds the data source.

Serves ordinary wheels and editable installs alike. Maven runs only when a source is newer than the jar, so
building again, or from a checkout that has the jar, needs no JDK.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DISCOVERED_MODULE = "polaris_spark/spark/pyspark_polaris.py"


class BuildError(Exception):
    """The jar cannot be built; the message says what is missing."""


class ShimBuildHook(BuildHookInterface[Any]):
    """Builds the jar before the files of a wheel are collected."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the jar if it is out of date, and map Spark's discovery module to the top level."""
        jar = self._packaged_jar()
        if self._is_out_of_date(jar):
            self._run_maven()
            self._package(jar)
        top_level = {str(Path(self.root, DISCOVERED_MODULE)): Path(DISCOVERED_MODULE).name}
        if version == "editable":
            # The package itself comes by a .pth file, which cannot rename a module: this one is copied.
            build_data["force_include_editable"].update(top_level)
        else:
            build_data["force_include"].update(top_level)

    def clean(self, versions: list[str]) -> None:
        """Remove what `initialize` made."""
        for jar in self._jars().glob("*.jar"):
            jar.unlink()
        shutil.rmtree(self._shim() / "target", ignore_errors=True)

    def _shim(self) -> Path:
        return Path(self.root, "jvm-shim")

    def _jars(self) -> Path:
        return Path(self.root, "polaris_spark", "jars")

    def _packaged_jar(self) -> Path:
        return self._jars() / f"polaris-spark-shim-{self.metadata.version}.jar"

    def _is_out_of_date(self, jar: Path) -> bool:
        if not jar.exists():
            return True
        sources = [self._shim() / "pom.xml", *self._shim().glob("src/main/**/*.java")]
        return max(source.stat().st_mtime for source in sources) > jar.stat().st_mtime

    def _run_maven(self) -> None:
        for program, what in (("mvn", "Maven 3.8 or newer"), ("javac", "a JDK, version 17")):
            if shutil.which(program) is None:
                raise BuildError(
                    f"Building polaris-spark from source needs {what}: '{program}' is not on the PATH. "
                    "Install it, or install polaris-spark from a wheel, which holds the jar."
                )
        command = ["mvn", "-q", "-B", f"-Drevision={self.metadata.version}", "clean", "package"]
        self.app.display_info("Building the JVM shim with Maven")
        built = subprocess.run(command, cwd=self._shim(), text=True, capture_output=True, check=False)
        if built.returncode != 0:
            raise BuildError(f"'{' '.join(command)}' failed in {self._shim()}:\n{built.stdout}{built.stderr}")

    def _package(self, jar: Path) -> None:
        jar.parent.mkdir(exist_ok=True)
        for old in jar.parent.glob("*.jar"):
            old.unlink()
        shutil.copyfile(self._shim() / "target" / f"{jar.stem}-spark.jar", jar)
