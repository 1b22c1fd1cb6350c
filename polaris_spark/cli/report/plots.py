"""Drawings of the figures as SVG. Needs matplotlib (the extra `report`)."""

from __future__ import annotations

import io
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from polaris_spark.cli.output import counted, plain, size
from polaris_spark.cli.report.history import CommitFigures
from polaris_spark.cli.report.lake import Lake
from polaris_spark.cli.report.rows import AGE_NAMES, ObjectFigures

_MAIN, _OTHER, _LIGHT = "#1f6f8b", "#d1495b", "#b8c4cc"
_WIDTH, _HEIGHT = 9.0, 3.2
_INCHES_PER_BAR = 0.26
_BINS = 60
_LABEL = 44
"""Maximum length of a name in a drawing, in characters. Longer names are shortened; the tables below the drawings show
all names in full."""
TOP = 15
"""Maximum number of tables, namespaces or writers in a drawing."""

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
SNAPSHOT_AGES = (
    ("under 1 hour", _HOUR),
    ("1 to 24 hours", _DAY),
    ("1 to 7 days", 7 * _DAY),
    ("7 to 30 days", 30 * _DAY),
    ("30 to 90 days", 90 * _DAY),
    ("90 days to 1 year", 365 * _DAY),
)
OLDER = "1 year and more"
_WAITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000)


def commits_over_time(history: CommitFigures) -> str:
    """Return a drawing of the number of changes and commits in each of several equal spans of time."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        times = [_moment(time) for time in history.times]
        axes.hist(times, bins=_BINS, weights=list(history.sizes), color=_LIGHT, label="changes")
        axes.hist(times, bins=_BINS, histtype="step", color=_MAIN, linewidth=1.6, label="commits")
        _legend(figure)
        _dates(axes)
        _whole(axes.yaxis)

    return _svg(draw, rows=0, empty=not history.times)


def busiest_tables(history: CommitFigures) -> str:
    """Return a drawing of the tables that were changed most often."""
    top = history.tables.most_common(TOP)
    return _bars([(history.names[id], count, f"{count:,}") for id, count in top], "changes")


def contention(history: CommitFigures) -> str:
    """Return drawings of how long changes waited to be committed, and of the number of changes per commit."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        names = [f"<= {_duration(limit)}" for limit in _WAITS] + [f"> {_duration(_WAITS[-1])}"]
        counts = _counts_between(history.waits, _WAITS, inclusive=True)
        _columns(left, names, counts, "from preparation to commit", "changes")
        limits = [1, 2, 4, 8, 16, 32, 64]
        sizes = _counts_between([n for n in history.sizes if n], limits, inclusive=True)
        spans = ["1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "> 64"]
        _columns(right, spans, sizes, "changes in one commit", "commits")

    return _svg(draw, rows=0, empty=not history.waits)


def writers(history: CommitFigures) -> str:
    """Return a drawing of commits by principal."""
    top = history.writers.most_common(TOP)
    return _bars([(principal, count, f"{count:,}") for principal, count in top], "commits")


def storage(lake: Lake) -> str:
    """Return a chart of the total file size of each namespace's tables."""
    found = sorted(lake.by_namespace.items(), key=lambda item: item[1].bytes, reverse=True)
    bars = [
        (name, one.bytes, f"{size(one.bytes)}, {counted(one.tables, 'table')}") for name, one in found[:TOP]
    ]
    return _bars(bars, "bytes of current files", format=_bytes)


def growth(history: CommitFigures, lake: Lake, rows: ObjectFigures) -> str:
    """Return drawings of the tables, the records and the catalog's own rows over time."""

    def draw(figure: Any) -> None:
        first, second, third = figure.subplots(1, 3)
        _tables_over_time(first, history, lake)
        _steps(second, history.written, sum(records for _, records in history.written), history)
        second.set_title("records added minus records deleted", fontsize=9)
        total, line = 0, []
        for day, amount in sorted(rows.days.items()):
            total += amount.bytes
            line.append((min((day + 1) * _DAY, rows.now_ms), total))
        if line:
            start = min(min(rows.days) * _DAY, rows.now_ms)
            times = [_moment(at) for at in (start, *(at for at, _ in line))]
            third.plot(times, [0, *(n for _, n in line)], color=_MAIN)
        third.set_title("the catalog's own rows", fontsize=9)
        third.yaxis.set_major_formatter(_bytes)
        for axes in (first, second, third):
            _dates(axes)

    return _svg(draw, rows=0, empty=not history.times and not rows.days)


def garbage(rows: ObjectFigures) -> str:
    """Return drawings of the size of objects by type and by age, with the part that no reference needs."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        types = sorted({type for type, _ in rows.groups}, key=lambda type: -_sum(rows, type=type)[0])
        _stacked(left, types[:TOP], [_sum(rows, type=type) for type in types[:TOP]])
        _stacked(right, AGE_NAMES, [_sum(rows, group=group) for group in range(len(AGE_NAMES))])
        if rows.unneeded is not None:
            _legend(figure, *left.get_legend_handles_labels())

    return _svg(draw, rows=max(len({type for type, _ in rows.groups}), len(AGE_NAMES)), empty=not rows.groups)


def snapshot_ages(lake: Lake) -> str:
    """Return drawings of the age of the tables' current snapshots, and of the number of snapshots of the tables."""

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        names = [name for name, _ in SNAPSHOT_AGES] + [OLDER, "no snapshot"]
        counts = [*ages_of(lake), lake.empty]
        _columns(left, names, counts, "age of the current snapshot", "tables")
        kept = _counts_between(lake.kept, [0, 1, 10, 100, 1_000, 10_000], inclusive=True)
        spans = ["none", "1", "2-10", "11-100", "101-1,000", "1,001-10,000", "> 10,000"]
        _columns(right, spans, kept, "snapshots kept", "tables")

    return _svg(draw, rows=0, empty=not lake.kept)


def ages_of(lake: Lake) -> list[int]:
    """Return the number of tables by age of the current snapshot, in the groups of `SNAPSHOT_AGES` and `OLDER`."""
    return _counts_between(lake.ages, [limit for _, limit in SNAPSHOT_AGES])


def _tables_over_time(axes: Any, history: CommitFigures, lake: Lake) -> None:
    axes.set_title("tables", fontsize=9)
    if not lake.counted:
        axes.annotate("not counted within the time limit", (0.5, 0.5), xycoords="axes fraction", ha="center")
        return
    _steps(axes, history.births, lake.tables, history)


def _steps(axes: Any, changes: Sequence[tuple[int, int]], now: int, history: CommitFigures) -> None:
    """Draw a count over time, from the oldest commit read to the newest. Earlier values are computed from the current
    value.

    Args:
        changes: (time in milliseconds since 1970, change of the count), the newest first.
        now: the current value.
    """
    if not history.times:
        return
    at, line = now, [(history.times[0], now)]
    for time, change in changes:
        line.append((time, at))
        at -= change
    line.append((history.times[-1], at))
    axes.step([_moment(time) for time, _ in line], [n for _, n in line], where="pre", color=_MAIN)
    _whole(axes.yaxis)
    axes.set_ylim(min(0, *(n for _, n in line)), max(1, axes.get_ylim()[1]))


def _sum(rows: ObjectFigures, *, type: str | None = None, group: int | None = None) -> tuple[int, int]:
    """Return (bytes, bytes of unneeded objects), summed over the objects of the type `type` or of the age group
    `group`."""

    def of(sums: Any) -> int:
        return sum(one.bytes for key, one in sums.items() if key[0] == type or key[1] == group)

    return of(rows.groups), of(rows.unneeded or {})


def _stacked(axes: Any, names: Sequence[str], sums: Sequence[tuple[int, int]]) -> None:
    places = [-i for i in range(len(names))]
    axes.barh(places, [total - lost for total, lost in sums], color=_MAIN, label="needed")
    lost = [lost for _, lost in sums]
    axes.barh(places, lost, left=[total - gone for total, gone in sums], color=_OTHER, label="not needed")
    axes.set_yticks(places, [_cut(name) for name in names], fontsize=8)
    axes.xaxis.set_major_formatter(_bytes)
    axes.xaxis.set_major_locator(_few())


def _bars(bars: Sequence[tuple[str, int, str]], what: str, format: Any = None) -> str:
    """Return a drawing of horizontal bars.

    Args:
        bars: (name, length, label), from top to bottom.
        what: label of the axis.
        format: formats the numbers of the axis.
    """

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places = [-i for i in range(len(bars))]
        axes.barh(places, [value for _, value, _ in bars], color=_MAIN, height=0.7)
        axes.set_yticks(places, [_cut(name) for name, _, _ in bars], fontsize=8)
        for place, (_, value, words) in zip(places, bars, strict=True):
            axes.annotate(
                words, (value, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
        axes.margins(x=0.18)
        axes.set_xlim(0, max(1, axes.get_xlim()[1]))
        axes.set_xlabel(what)
        axes.xaxis.set_major_locator(_few())
        axes.xaxis.set_major_formatter(format or (lambda value, _: f"{value:,.0f}"))

    return _svg(draw, rows=len(bars), empty=not bars)


def _columns(axes: Any, names: Sequence[str], counts: Sequence[int], title: str, what: str) -> None:
    axes.bar(range(len(names)), counts, color=_MAIN, width=0.8)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=7)
    axes.set_title(title, fontsize=9)
    axes.set_ylabel(what)
    _whole(axes.yaxis)


def _counts_between(values: Sequence[int], limits: Sequence[int], *, inclusive: bool = False) -> list[int]:
    """Return the number of values in each group. `limits` are the limits between the groups, in ascending order.

    A group contains the values below its limit (or equal to it, if `inclusive`) that are in no earlier group. The last
    group contains all other values.
    """
    place = bisect_left if inclusive else bisect_right
    counts = Counter(place(limits, value) for value in values)
    return [counts[group] for group in range(len(limits) + 1)]


def _svg(draw: Callable[[Any], None], *, rows: int, empty: bool) -> str:
    """Return the figure that `draw` draws, as SVG text. Letters are drawn as outlines, so that the figure looks the
    same on every machine."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
        "svg.fonttype": "path",
        "svg.hashsalt": "report",
        "text.parse_math": False,  # a name may contain dollar signs
    }
    text = io.StringIO()
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about letters that no font has
        figure = Figure(
            figsize=(_WIDTH, 0.9 + _INCHES_PER_BAR * rows if rows else _HEIGHT), layout="constrained"
        )
        if empty:
            figure.text(0.5, 0.5, "nothing to show", ha="center", color="gray")
        else:
            draw(figure)
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _legend(figure: Any, *handles: Any) -> None:
    """Add a legend of the colors beside the drawing, where it does not hide any bar."""
    figure.legend(*handles, loc="outside upper right", ncols=2, frameon=False, fontsize=8)


def _dates(axes: Any) -> None:
    from matplotlib import dates

    made: Any = dates  # its classes are not typed
    locator = made.AutoDateLocator(maxticks=6, tz=timezone.utc)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(made.ConciseDateFormatter(locator, tz=timezone.utc))


def _whole(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _few() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5, integer=True)


def _bytes(value: float, _: object = None) -> str:
    return size(int(value))


def _duration(ms: int) -> str:
    if ms < 1_000:
        return f"{ms} ms"
    return f"{ms // 1_000} s" if ms < _MINUTE else f"{ms // _MINUTE} min"


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, timezone.utc)


def _cut(name: str) -> str:
    """Return a name with unprintable characters escaped, shortened in the middle if it is longer than `_LABEL`."""
    shown = plain(name)
    return shown if len(shown) <= _LABEL else f"{shown[: _LABEL // 2]}...{shown[-_LABEL // 2 + 3 :]}"
