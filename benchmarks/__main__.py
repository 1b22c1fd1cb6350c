"""`python -m benchmarks`: measures this catalog beside its peers; writes a table and a plot."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from benchmarks import machine, plot, report
from benchmarks.findings import Finding, Run
from benchmarks.parts import FULL, PARTS, QUICK, Sizes

_WIDTH_OF_PIPES = 170


def main() -> None:
    """Measure the requested parts; exit with status 1 if a bar was missed or a part could not be measured."""
    asked = _parse()
    sizes = _sizes(asked)
    with tempfile.TemporaryDirectory(dir=asked.directory) as folder:
        parts = asked.parts or [part for part in PARTS if part != "earlier" or asked.against]
        run = _measure(Path(folder), parts, sizes, asked.output)
    report.show(run, Console() if sys.stdout.isatty() else Console(width=_WIDTH_OF_PIPES))
    sys.exit(0 if run.met else 1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parts = "; ".join(f"{name}: {part.about}" for name, part in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"(default: all) {parts}")
    parser.add_argument("--rounds", type=int, help=f"turns that the sides take (default: {FULL.rounds})")
    parser.add_argument("--calls", type=int, help=f"calls of one round (default: {FULL.calls})")
    parser.add_argument("--seconds", type=float, help=f"of timed rounds (default: {FULL.seconds:g})")
    parser.add_argument("--tables", type=int, help=f"of the large namespace (default: {FULL.tables:,})")
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        help="tables of the part growth's catalogs (default: 1000 100000 1000000)",
    )
    parser.add_argument(
        "--databases", nargs="+", help="of the parts databases, processes and transactions, by scheme"
    )
    parser.add_argument("--against", type=Path, help="folder of the earlier checkout of the part earlier")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it runs, not how fast")
    parser.add_argument("--directory", type=Path, help="where stores and files go (default: temporary)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("polaris-bench"),
        help="folder for figures.md, figures.json and figures.png (default: %(default)s)",
    )
    asked = parser.parse_args()
    unknown = [part for part in asked.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(PARTS)}")
    if "earlier" in asked.parts and asked.against is None:
        parser.error("the part earlier needs --against: the folder of an earlier checkout")
    for option in ("rounds", "calls", "seconds", "tables"):
        value = getattr(asked, option)
        if value is not None and value <= 0:
            parser.error(f"--{option} must be positive, not {value:g}")
    return asked


def _sizes(asked: argparse.Namespace) -> Sizes:
    given = {name: getattr(asked, name) for name in ("rounds", "calls", "seconds", "tables")}
    given["sizes"] = tuple(sorted(asked.sizes)) if asked.sizes else None
    given["against"] = str(asked.against.absolute()) if asked.against else None
    given["schemes"] = tuple(asked.databases) if asked.databases else None
    return (QUICK if asked.quick else FULL)._replace(**{n: v for n, v in given.items() if v is not None})


def _measure(folder: Path, parts: list[str], sizes: Sizes, output: Path) -> Run:
    """Measure parts one by one. Output files are written after each part, so that a late failure loses no figures."""
    settings = {"date": time.strftime("%Y-%m-%d %H:%M %Z"), **sizes._asdict()}
    findings: dict[str, list[Finding]] = {}
    failed: dict[str, str] = {}
    output.mkdir(parents=True, exist_ok=True)
    run = Run(machine.describe(folder), settings, findings, failed)
    for part in parts:
        place = folder / part
        place.mkdir()
        try:
            findings[part] = list(PARTS[part].measure(place, sizes))
        except Exception as error:  # an error in one part must not stop the others
            failed[part] = f"{type(error).__name__}: {error}"
        (output / "figures.md").write_text(report.markdown(run), encoding="utf-8")
        (output / "figures.json").write_text(report.as_json(run), encoding="utf-8")
        plot.draw(run, output / "figures.png")
    return run


if __name__ == "__main__":
    main()
