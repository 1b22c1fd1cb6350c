"""`python -m polaris_spark.testing.bench`: prints the figures of the README's performance section."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from polaris_spark.testing.bench import adapter, bridge, commits, imports, jdbc, listing, loading
from polaris_spark.testing.bench.catalogs import Ours, PyIceberg
from polaris_spark.testing.bench.measuring import Figure, machine

PARTS = ("commits", "loading", "listing", "bridge", "jdbc", "pyiceberg", "imports")


def main() -> None:
    """Measure what was asked for and print it as a table; exit status 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m polaris_spark.testing.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns that both sides take")
    parser.add_argument("--calls", type=int, default=400, help="calls of one round")
    parser.add_argument("--tables", type=int, default=100_000, help="size of the large namespace")
    parser.add_argument("--directory", type=Path, help="where stores and files go (default: temporary)")
    asked = parser.parse_args()
    unknown = set(asked.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(dir=asked.directory) as folder:
        figures = _measure(Path(folder), asked)
    _print(figures)
    sys.exit(0 if all(figure.met for figure in figures) else 1)


def _measure(folder: Path, asked: argparse.Namespace) -> list[Figure]:
    parts = asked.parts or PARTS
    figures: list[Figure] = []
    if "commits" in parts:
        figures += commits.measure(folder, rounds=asked.rounds, calls=asked.calls)
    if "loading" in parts:
        figures += loading.measure(folder, rounds=asked.rounds, calls=asked.calls)
    if "listing" in parts:
        figures += listing.measure(folder, tables=asked.tables, calls=asked.calls // 4)
    if "bridge" in parts:
        figures += bridge.measure(folder, rounds=asked.rounds, calls=asked.calls)
    if "jdbc" in parts:
        figures += jdbc.measure(folder, rounds=asked.rounds)
    if "pyiceberg" in parts:
        figures += adapter.measure(folder, rounds=asked.rounds, calls=asked.calls)
    if "imports" in parts:
        figures += imports.measure(folder, rounds=asked.rounds, lazily=asked.tables)
    return figures


def _print(figures: list[Figure]) -> None:
    console = Console(width=150) if not sys.stdout.isatty() else Console()
    console.print(f"{machine()}; medians of turns taken by both sides")
    console.print(
        f"durability: ours {Ours.DURABILITY}; pyiceberg SqlCatalog {PyIceberg.DURABILITY}; {jdbc.DURABILITY}"
    )
    table = Table("what", "ours", "peer", "ratio", "bar", "met")
    for figure in figures:
        met = "yes" if figure.met else "[bold]no[/bold]"
        table.add_row(*figure[:5], met if figure.bar else "")
    console.print(table)


if __name__ == "__main__":
    main()
