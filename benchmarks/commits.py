"""Property commits per second, compared with pyiceberg's SqlCatalog, both on SQLite."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from benchmarks.catalogs import Measured, Ours, PyIceberg
from benchmarks.findings import Durability, Finding
from benchmarks.measurement import Figure, Rate, Sample, compare, in_turns, run_for


class Case(NamedTuple):
    """One line of the result: metadata files, threads, tables, and the required ratio."""

    metadata_files: str
    threads: int
    tables: int
    least: float

    @property
    def what(self) -> str:
        """Name of the line."""
        return f"property commits/s, {self.metadata_files}, {self._who}"

    @property
    def _who(self) -> str:
        if self.threads == 1:
            return "1 thread"
        return f"{self.threads} threads, {'one table' if self.tables == 1 else 'a table each'}"


CASES = (
    Case("never", threads=1, tables=1, least=10),
    Case("never", threads=32, tables=32, least=20),
    Case("never", threads=32, tables=1, least=80),
    Case("never", threads=8, tables=1, least=20),
    Case("every-commit", threads=1, tables=1, least=3),
    Case("every-commit", threads=8, tables=1, least=3),
)


def measure(folder: Path, *, rounds: int, seconds: float) -> list[Finding]:
    """Measure commits with one thread and with several threads, on one table and with one table for each thread.

    Args:
        folder: folder for stores and files.
        seconds: duration of a side's turn, in seconds.
    """
    peer = PyIceberg(folder)
    ours = {mode: Ours(folder / mode, metadata_files=mode) for mode in ("never", "every-commit")}
    figures: list[Figure] = []
    reached: dict[Case, Sample] = {}
    try:
        for case in CASES:
            sides: list[Measured] = [ours[case.metadata_files], peer]
            mine, theirs = in_turns(rounds, [partial(rate, side, case, seconds) for side in sides])
            reached[case] = mine
            faultless = case.threads > 1
            figures.append(compare(case.what, mine, theirs, least=case.least, faultless=faultless))
    finally:
        peer.close()
        for catalog in ours.values():
            catalog.close()
    alone, together = reached[CASES[0]], reached[CASES[2]]
    figures.append(
        compare(
            "32 threads on one table against 1 thread, never",
            together,
            alone,
            least=1,
            beside="ours, 1 thread",
        )
    )
    return [*figures, Durability("polaris_spark on SQLite", Ours.DURABILITY), PyIceberg.durability()]


_round = count()


def rate(catalog: Measured, case: Case, seconds: float) -> Rate:
    """Return the rate of property commits by several threads to new tables, after a warm-up of `seconds / 4`."""
    run = next(_round)
    handles = [catalog.create(f"table_{run}_{n}") for n in range(case.tables)]

    def commit(thread: int, number: int) -> None:
        catalog.set_property(handles[thread % len(handles)], f"{run}-{thread}-{number}")

    run_for(case.threads, seconds / 4, commit)
    return run_for(case.threads, seconds, commit)
