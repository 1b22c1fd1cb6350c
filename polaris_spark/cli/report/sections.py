"""The texts of the page. For each picture, they say what it shows, how the data was measured, and what was left out."""

from __future__ import annotations

from typing import NamedTuple

from polaris_spark.cli.output import counted, noun, plain, size
from polaris_spark.cli.report import plots
from polaris_spark.cli.report.history import CommitFigures
from polaris_spark.cli.report.lake import Lake
from polaris_spark.cli.report.page import FigureTable, Section
from polaris_spark.cli.report.rows import AGE_NAMES, Amount, ObjectFigures

_LISTED = 100


class Figures(NamedTuple):
    """All figures of a report."""

    history: CommitFigures
    lake: Lake
    rows: ObjectFigures


def tiles(figures: Figures) -> list[tuple[str, str]]:
    """Return the figures at the top of the page, each with its label."""
    history, lake, rows = figures
    partly = "" if lake.counted else "at least "
    whole = rows.read == rows.parts
    return [
        (f"{partly}{lake.tables:,}", noun(lake.tables, "table")),
        (f"{lake.namespaces:,}", noun(lake.namespaces, "namespace")),
        (f"{lake.views:,}", noun(lake.views, "view")),
        (
            size(lake.total.bytes),
            "in current files" if lake.read == lake.tables else "in the files of a sample",
        ),
        (f"{history.commits:,}", f"{noun(history.commits, 'commit')} in the history"),
        (size(rows.total.bytes), "in rows of the realm" if whole else "in the rows that were read"),
    ]


def sections(figures: Figures) -> list[Section]:
    """Return the sections of the page, in their order."""
    history, lake, rows = figures
    log = _read_words(history.read, history.commits, "commits", "the newest ones")
    if history.floor:
        log += f" The history before commit {history.floor:,} was trimmed."
    seen = _read_words(lake.read, lake.tables, "tables", "a random sample")
    if not lake.counted:
        seen = "Not all tables were counted within the time limit. " + seen
    if lake.unloaded:
        seen += f" {lake.unloaded:,} were imported and never loaded; they are not shown."
    return [
        _commits(history, log),
        _busiest(history, log),
        _contention(history, log),
        _writers(history, log),
        _storage(lake, seen),
        _growth(figures, log),
        _garbage(rows),
        _ages(lake, seen),
    ]


def _read_words(read: int, of: int, what: str, order: str) -> str:
    """Return a sentence that says how many items were read.

    Args:
        read: number of items that were read.
        of: number of all items.
        what: plural noun for the items.
        order: description of the items that were read, if not all were read, such as `the newest ones`.
    """
    if read >= of:
        return f"All {of:,} {what} were read."
    return f"Only {read:,} of {of:,} {what} were read within the time limit (--seconds), {order}."


def _commits(history: CommitFigures, note: str) -> Section:
    return Section(
        "commits",
        "Commits over time",
        "Commits of the branch, and the changes in them. Changes that wait in one process are combined into one "
        "commit.",
        plots.commits_over_time(history),
        note,
        FigureTable(("what was done", "changes"), history.actions.most_common(_LISTED)),
    )


def _busiest(history: CommitFigures, note: str) -> Section:
    rows = [(plain(history.names[id]), count) for id, count in history.tables.most_common(_LISTED)]
    return Section(
        "busiest",
        "Busiest tables",
        "Changes of each table in the log, under its newest name; dropped tables are among them.",
        plots.busiest_tables(history),
        note,
        FigureTable(("table", "changes"), rows),
    )


def _contention(history: CommitFigures, note: str) -> Section:
    waits = sorted(history.waits)
    listed = [
        (name, waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0)
        for name, share in (("median", 0.5), ("95 %", 0.95), ("99 %", 0.99), ("longest", 1.0))
    ]
    return Section(
        "contention",
        "Contention and retries",
        "Left: the time from the last preparation of a change until its commit was built, just before it was "
        "written. "
        "This includes the wait for other changes, and repetitions after lost swaps. It is short without contention. "
        "Right: the number of changes per commit. The log does not record lost attempts, so retries are not counted. "
        "The rows that lost attempts wrote are part of the garbage below.",
        plots.contention(history),
        note,
        FigureTable(("from preparation to commit", "milliseconds"), listed),
    )


def _writers(history: CommitFigures, note: str) -> Section:
    after = max(1, history.read - 1)
    rows = [(plain(principal), count) for principal, count in history.writers.most_common(_LISTED)]
    return Section(
        "writers",
        "Writers",
        "Commits by the principals of their changes. A commit with changes of several principals counts for each "
        "of them. "
        f"{counted(history.takeovers, 'commit')} ({history.takeovers / after:.0%}) followed a commit of another "
        "process.",
        plots.writers(history),
        note,
        FigureTable(("principal", "commits"), rows),
    )


def _storage(lake: Lake, note: str) -> Section:
    found = sorted(lake.by_namespace.items(), key=lambda item: item[1].bytes, reverse=True)
    rows = [(plain(name), one.tables, one.records, one.bytes) for name, one in found[:_LISTED]]
    return Section(
        "storage",
        "Storage by namespace",
        "Bytes of data and delete files (total-files-size) in the summaries of current snapshots. Files that "
        "only older "
        "snapshots need are not included. A snapshot without this total counts as 0.",
        plots.storage(lake),
        note,
        FigureTable(("namespace", "tables", "records", "bytes"), rows),
    )


def _growth(figures: Figures, note: str) -> Section:
    history, lake, rows = figures
    listed = [(plain(name), bytes) for bytes, name in lake.largest]
    return Section(
        "growth",
        "Growth",
        "Left: number of tables, calculated backwards from now with the creations and drops in the log. Middle: "
        "records "
        "that snapshots added minus records that they deleted, since the oldest commit that was read; dropped "
        "tables are "
        "not subtracted. Right: bytes of the realm's existing rows, by the day of their creation.",
        plots.growth(history, lake, rows),
        note,
        FigureTable(("largest tables", "bytes"), listed),
    )


def _garbage(rows: ObjectFigures) -> Section:
    note = _read_words(rows.read, rows.parts, "parts of the realm's rows", "in random order")
    if rows.unneeded is None:
        words = f"It is not known which objects are unneeded: {rows.why_not}."
    else:
        count = sum(one.objects for one in rows.unneeded.values())
        bytes = sum(one.bytes for one in rows.unneeded.values())
        be = "is" if count == 1 else "are"
        words = (
            f"{counted(count, 'object')} of {size(bytes)} {be} not needed: no commit from a history floor to a head "
            "leads to them. A sweep deletes those that are older than the grace period. Younger ones may belong to a "
            "commit that is still being written."
        )
    return Section(
        "garbage",
        "The catalog's own rows, and garbage",
        f"Immutable objects of the realm (all catalogs and branches) by type and by age. {words}",
        plots.garbage(rows),
        note,
        FigureTable(
            ("type", "age", "objects", "bytes", "objects not needed", "bytes not needed"),
            _listed_groups(rows),
        ),
    )


def _listed_groups(rows: ObjectFigures) -> list[tuple[str | int, ...]]:
    listed: list[tuple[str | int, ...]] = []
    for key in sorted(rows.groups):
        unneeded = None if rows.unneeded is None else rows.unneeded.get(key, Amount())
        known = ("unknown", "unknown") if unneeded is None else tuple(unneeded)
        listed.append((plain(key[0]), AGE_NAMES[key[1]], *rows.groups[key], *known))
    return listed


def _ages(lake: Lake, note: str) -> Section:
    names = [name for name, _ in plots.SNAPSHOT_AGES] + [plots.OLDER]
    rows = [*zip(names, plots.ages_of(lake), strict=True), ("no snapshot", lake.empty)]
    return Section(
        "snapshots",
        "Age of snapshots",
        "Left: tables by the age of their current snapshot. Right: tables by the number of their snapshots. Expiry "
        "removes unneeded snapshots.",
        plots.snapshot_ages(lake),
        note,
        FigureTable(("age of the current snapshot", "tables"), rows),
    )
