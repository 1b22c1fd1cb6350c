"""The end of the demo: comparing the catalog's results with the results of pandas, and showing how to explore the
catalog."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from polaris_spark.cli.demo.session import CATALOG, DemoCatalog
from polaris_spark.cli.demo.stage import Figure
from polaris_spark.cli.output import grid

SCRIPT = "spark-sql.sh"
_LONGEST = 32


def compare(figures: list[Figure], console: Console) -> bool:
    """Print each result of the catalog beside the result of pandas. Return True if all results agree."""
    table = grid(None, "figure", "catalog", "pandas", "", right=("catalog", "pandas"))
    table.columns[0].no_wrap = True
    for figure in figures:
        mark = Text("✓", style="bold green") if figure.right else Text("✗ differs", style="bold red")
        table.add_row(figure.what, _short(figure.found), _short(figure.expected), mark)
    console.print(table)
    wrong = sum(not figure.right for figure in figures)
    if wrong:
        console.print(Text(f"{wrong} of {len(figures)} figures differ from pandas.", style="bold red"))
    else:
        console.print(
            Text(f"All {len(figures)} figures agree with pandas on the same data.", style="bold green")
        )
    return not wrong


def write_script(place: DemoCatalog) -> Path:
    """Write a shell script that starts spark-sql with the catalog, and return its path."""
    from polaris_spark.spark.session import (
        CATALOG_CLASS,
        ICEBERG_EXTENSIONS,
        ICEBERG_PACKAGE,
        POLARIS_EXTENSIONS,
        jar,
        lineage_uri,
    )

    prefix = f"spark.sql.catalog.{CATALOG}"
    settings = {
        "spark.sql.extensions": f"{ICEBERG_EXTENSIONS},{POLARIS_EXTENSIONS}",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.defaultCatalog": CATALOG,
        "spark.sql.session.timeZone": "UTC",
        prefix: CATALOG_CLASS,
        f"{prefix}.type": "rest",
        f"{prefix}.uri": lineage_uri(place.store),
        f"{prefix}.store": place.store,
        f"{prefix}.warehouse": str(place.warehouse),
        f"{prefix}.python": sys.executable,
        **{f"{prefix}.store.{option}": text for option, text in place.options.items()},
    }
    beside = Path(sys.executable).with_name("spark-sql")
    lines = [
        "#!/bin/sh",
        "# Spark SQL on the catalog of the demo. Arguments go to spark-sql, such as -e 'SHOW TABLES IN nyc'.",
        f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}",
        f"exec {shlex.quote(str(beside) if beside.exists() else 'spark-sql')} \\",
        f"  --jars {shlex.quote(jar())} \\",
        f"  --packages {ICEBERG_PACKAGE} \\",
        *(f"  --conf {shlex.quote(f'{name}={text}')} \\" for name, text in settings.items()),
        '  "$@"',
    ]
    path = place.directory / SCRIPT
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


def say_how_to_look(place: DemoCatalog, picture: Path, script: Path, console: Console) -> None:
    """Print where the demo's files are, and the commands to explore them."""
    store, program = shlex.quote(place.store), _program()
    if place.password is not None:
        store += f" --password {shlex.quote(place.password)}"
    lines = (
        ("picture", str(picture)),
        ("history", f"{program} log {store}"),
        ("tables", f"{program} tables {store}"),
        ("store", f"{program} info {store}"),
        ("Spark SQL", f"{shlex.quote(str(script))} -e 'SELECT * FROM polaris.system.changes'"),
    )
    console.print()
    console.print(Text(f"Everything is in {place.directory}:", style="bold"))
    for what, command in lines:
        console.print(Text(f"  {what:<10} {command}"), soft_wrap=True)


def _program() -> str:
    """Return the command that runs this program: `polaris-spark`, or its path if it is not on the PATH."""
    called = Path(sys.argv[0])
    found = shutil.which("polaris-spark")
    if called.name != "polaris-spark" or (found is not None and Path(found).absolute() == called.absolute()):
        return "polaris-spark"
    return shlex.quote(str(called))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        numbers = [number for number in value.values() if isinstance(number, (int, float))]
        total = sum(numbers)
        shown = f"{total:,}" if isinstance(total, int) else f"{total:,.6f}"
        return f"{len(value)} values, sum {shown}"
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    if not text:
        return "none"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
