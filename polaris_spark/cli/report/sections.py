"""The texts of the page: for each picture, its content, how it was measured, and what was left out."""

from __future__ import annotations

from typing import NamedTuple

from polaris_spark.cli.output import counted, noun, plain, size
from polaris_spark.cli.report import plots
from polaris_spark.cli.report.deadline import read_words
from polaris_spark.cli.report.history import History
from polaris_spark.cli.report.lake import Lake
from polaris_spark.cli.report.page import Listed, Section
from polaris_spark.cli.report.rows import AGE_NAMES, Amount, Rows

_LISTED = 100


class Figures(NamedTuple):
    """All figures of a report."""

    history: History
    lake: Lake
    rows: Rows


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
    """Return the sections in the order of the page."""
    history, lake, rows = figures
    log = read_words(history.read, history.commits, "commits", "the newest ones")
    if history.floor:
        log += f" The history before commit {history.floor:,} was trimmed."
    seen = read_words(lake.read, lake.tables, "tables", "a random sample")
    if not lake.counted:
        seen = "Time did not allow for counting all tables. " + seen
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


def _commits(history: History, note: str) -> Section:
    return Section(
        "commits",
        "Commits over time",
        "Commits of the branch, and the changes that they carried: waiting changes of one process share a commit.",
        plots.commits_over_time(history),
        note,
        Listed(("what was done", "changes"), history.actions.most_common(_LISTED)),
    )


def _busiest(history: History, note: str) -> Section:
    rows = [(plain(history.names[id]), count) for id, count in history.tables.most_common(_LISTED)]
    return Section(
        "busiest",
        "Busiest tables",
        "Changes of each table in the log, under its newest name; dropped tables are among them.",
        plots.busiest_tables(history),
        note,
        Listed(("table", "changes"), rows),
    )


def _contention(history: History, note: str) -> Section:
    waits = sorted(history.waits)
    listed = [
        (name, waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0)
        for name, share in (("median", 0.5), ("95 %", 0.95), ("99 %", 0.99), ("longest", 1.0))
    ]
    return Section(
        "contention",
        "Contention and retries",
        "Left: the time from the last preparation of a change to when the commit that carries it was made, just before "
        "it was written. It holds what the change waited for others and its repetitions after lost swaps, and is short "
        "where nobody contends. Right: how many changes went into one commit. Attempts that lose are not logged, so "
        "retries are not counted one by one; rows that such attempts left behind are part of the garbage below.",
        plots.contention(history),
        note,
        Listed(("from preparation to commit", "milliseconds"), listed),
    )


def _writers(history: History, note: str) -> Section:
    after = max(1, history.read - 1)
    rows = [(plain(principal), count) for principal, count in history.writers.most_common(_LISTED)]
    return Section(
        "writers",
        "Writers",
        "Commits by the principals whose changes they carry; a commit that carries changes of several counts for each. "
        f"{counted(history.takeovers, 'commit')} ({history.takeovers / after:.0%}) followed one of another process.",
        plots.writers(history),
        note,
        Listed(("principal", "commits"), rows),
    )


def _storage(lake: Lake, note: str) -> Section:
    found = sorted(lake.by_namespace.items(), key=lambda item: item[1].bytes, reverse=True)
    rows = [(plain(name), one.tables, one.records, one.bytes) for name, one in found[:_LISTED]]
    return Section(
        "storage",
        "Storage by namespace",
        "Bytes of data and delete files (total-files-size) by the summaries of current snapshots; what older "
        "snapshots keep comes on top. Engines that do not write that total count as 0.",
        plots.storage(lake),
        note,
        Listed(("namespace", "tables", "records", "bytes"), rows),
    )


def _growth(figures: Figures, note: str) -> Section:
    history, lake, rows = figures
    listed = [(plain(name), bytes) for bytes, name in lake.largest]
    return Section(
        "growth",
        "Growth",
        "Left: tables, counted back from now by what the log says came and went. Middle: records that snapshots added "
        "less those that they deleted, since the oldest commit that was read; tables that were dropped are not taken "
        "off. Right: bytes of the realm's rows that are there now, by the day they were made.",
        plots.growth(history, lake, rows),
        note,
        Listed(("largest tables", "bytes"), listed),
    )


def _garbage(rows: Rows) -> Section:
    note = read_words(rows.read, rows.parts, "parts of the realm's rows", "in random order")
    if rows.unneeded is None:
        words = f"Which of them are not needed was not worked out: {rows.why_not}."
    else:
        count = sum(one.objects for one in rows.unneeded.values())
        bytes = sum(one.bytes for one in rows.unneeded.values())
        be = "is" if count == 1 else "are"
        words = (
            f"{counted(count, 'object')} of {size(bytes)} {be} not needed: no reference leads there from its history "
            "floor on. A sweep deletes those that are older than the grace period; the young ones may belong to a "
            "change that is under way."
        )
    return Section(
        "garbage",
        "The catalog's own rows, and garbage",
        f"Immutable objects of the realm (all catalogs and branches) by type and by age. {words}",
        plots.garbage(rows),
        note,
        Listed(
            ("type", "age", "objects", "bytes", "objects not needed", "bytes not needed"),
            _listed_groups(rows),
        ),
    )


def _listed_groups(rows: Rows) -> list[tuple[str | int, ...]]:
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
        "Left: when the current data of tables was written. Right: how many snapshots tables keep; expiry takes away "
        "those that nobody needs.",
        plots.snapshot_ages(lake),
        note,
        Listed(("age of the current snapshot", "tables"), rows),
    )
