"""`polaris-spark report`: the page shows the data of the store."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from matplotlib import dates
from matplotlib.figure import Figure

from polaris_spark.cli.demo import picture
from polaris_spark.cli.report import plots
from polaris_spark.cli.report.history import CommitFigures, read_history
from polaris_spark.cli.report.lake import Lake, Storage, read_lake
from polaris_spark.cli.report.rows import Amount, ObjectFigures, read_rows
from polaris_spark.cli.report.sections import Figures, sections, tiles
from polaris_spark.cli.stores import open_store
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.errors import StateError
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep import sweep
from polaris_spark.maintenance.trim import trim
from tests.browser import Browser
from tests.cli.catalogs import run
from tests.stores import unavailable
from tests.views.catalogs import Catalog

SCRIPT = "<script>document.title='taken over'</script>"
IMAGE = '"><img src="http://127.0.0.1:9/seen" onerror="document.title=1">'
MATHS = "$x_{1"
PICTURES = ("commits", "busiest", "contention", "writers", "storage", "growth", "garbage", "snapshots")
DAY = 86_400_000
BYTES = 1_000_000


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory, clock: ManualClock) -> Iterator[Catalog]:
    """Tables in three namespaces with hostile names. They have twelve snapshots in all, and one table was dropped."""
    catalog = Catalog(tmp_path_factory.mktemp("report") / "c.db", clock=clock)
    for namespace, tables in (("sales", ("orders", SCRIPT)), (IMAGE, ("t", MATHS)), ("empty", ())):
        catalog.namespace(namespace)
        for table in tables:
            catalog.table(quote(namespace, safe=""), table)
    catalog.table("sales", "gone")
    catalog.request("DELETE", "v1/namespaces/sales/tables/gone")
    for i in range(12):
        clock.advance(DAY)
        namespace, table = [("sales", "orders"), ("sales", SCRIPT), (IMAGE, "t")][i % 3]
        summary = {
            "operation": "append",
            "added-records": "3",
            "total-records": str(3 * (i // 3 + 1)),
            "total-files-size": str(BYTES * (i // 3 + 1)),
        }
        catalog.snapshot(quote(namespace, safe=""), quote(table, safe=""), 100 + i, summary=summary)
    clock.advance(DAY)
    yield catalog
    catalog.session.close()


def figures(catalog: Catalog, now: int, seconds: float = 60) -> tuple[CommitFigures, Lake, ObjectFigures]:
    """The figures that the command collects."""
    with open_store(catalog.store) as opened:
        place = opened.realm("default")
        head = place.catalog_head(place.catalog(None), "main")
        return (
            read_history(head, time.monotonic() + seconds),
            read_lake(head, now, time.monotonic() + seconds),
            read_rows(opened.backend, place, now, time.monotonic() + seconds),
        )


def test_the_log_is_counted_by_table_action_and_writer(busy: Catalog, clock: ManualClock) -> None:
    history, _, _ = figures(busy, clock.now_ms())
    changes = busy.read("changes")
    assert (history.read, history.commits, history.changes) == (22, 22, len(changes))
    assert history.actions == {
        "create-namespace": 3, "create-table": 5, "drop-table": 1, "update-table": 12
    }  # fmt: skip  # a row of the log
    named = {history.names[id]: count for id, count in history.tables.items()}
    assert named["sales.orders"] == 5
    assert named["sales.gone"] == 2
    assert sorted(named.values()) == [1, 2, 5, 5, 5]
    assert history.writers == Counter(row["principal"] for row in changes)  # each in a commit of its own
    assert history.takeovers == 0
    assert sum(change for _, change in history.births) == 4
    assert sum(records for _, records in history.written) == 36
    waits = [(row["committed_at"] - row["changed_at"]).total_seconds() * 1_000 for row in changes]
    assert sorted(history.waits) == sorted(max(0, round(wait)) for wait in waits)


def test_storage_is_that_of_current_snapshots(busy: Catalog, clock: ManualClock) -> None:
    _, lake, _ = figures(busy, clock.now_ms())
    assert (lake.namespaces, lake.tables, lake.views, lake.read) == (3, 4, 0, 4)
    assert lake.by_namespace == {"sales": Storage(2, 24, 8 * BYTES), f"`{IMAGE}`": Storage(2, 12, 4 * BYTES)}
    assert lake.total == Storage(4, 36, 12 * BYTES)
    assert sorted(lake.kept) == [0, 4, 4, 4]
    assert lake.empty == 1
    # A snapshot is as old as the table's change before it, by the fixture.
    assert len(lake.ages) == 3
    assert all(DAY <= age <= 6 * DAY for age in lake.ages)


def test_rows_that_nothing_needs_are_found_and_no_others(busy: Catalog, clock: ManualClock) -> None:
    from polaris_spark.catalog.rows import Namespace

    _, _, before = figures(busy, clock.now_ms())
    objects = list(busy.read("objects"))
    assert before.total == Amount(len(objects), sum(row["bytes"] for row in objects))
    assert before.unneeded == {}
    store = busy.session.catalog.references.store
    store.write([(busy.session.catalog.references.ids.next_id(), Namespace(7, 0, "nobody"))])
    clock.advance(40 * DAY)
    _, _, rows = figures(busy, clock.now_ms())
    assert rows.unneeded is not None
    assert {key: amount.objects for key, amount in rows.unneeded.items()} == {("namespace", 4): 1}


def test_the_garbage_in_the_report_is_what_a_sweep_deletes(tmp_path: Path) -> None:
    clock = ManualClock()
    catalog = Catalog(tmp_path / "c.db", clock=clock)
    references, me = catalog.session.catalog.references, Operation(b"", "ann")
    catalog.namespace("db")
    for name in ("t", "u"):
        catalog.table("db", name)
        for i in range(20):
            catalog.set_property("db", name, "i", str(i))
    dev = catalog.session.catalog.reference.replace("main", "dev")
    references.create(dev, me, source=references.read(catalog.session.catalog.reference))
    references.drop(dev, me)
    catalog.request("DELETE", "v1/namespaces/db/tables/u")
    clock.advance(40 * DAY)
    policy = Policy(retention_ms=3 * DAY, grace_ms=DAY)
    trim(references, policy)
    references.end([one for one in references.listed() if one.name == dev], me)
    found = sweep(references, policy, operation=me, dry_run=True)
    _, _, rows = figures(catalog, clock.now_ms())
    by_type = Counter[str]()
    for (type, group), amount in (rows.unneeded or {}).items():
        assert group == 4
        by_type[type] += amount.objects
    assert by_type == {count.type: count.objects for count in found.counts}
    assert by_type["table"] > 20
    sweep(references, policy, operation=me)
    _, _, rows = figures(catalog, clock.now_ms())
    assert rows.unneeded == {}
    catalog.session.close()


def test_the_report_says_which_parts_were_not_read_in_time(
    busy: Catalog, clock: ManualClock, tmp_path: Path
) -> None:
    history, lake, rows = figures(busy, clock.now_ms(), seconds=0)
    assert history.read == history.commits  # so few are read at once
    assert not lake.counted
    assert rows.unneeded is None
    page = tmp_path / "page.html"
    assert run("report", busy.store, "--output", str(page), "--seconds", "0.000001").code == 0
    words = unescape(page.read_text())
    assert "Not all tables were counted within the time limit." in words
    assert (
        "It is not known which objects are unneeded: not all rows were read within the time limit (--seconds)"
        in words
    )
    assert "at least" in words
    refused = run("report", busy.store, "--seconds", "0")
    assert (refused.code, "--seconds is 0; it must be a number above 0" in refused.err) == (2, True)


def test_the_page_holds_everything_and_nothing_that_runs(busy: Catalog, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("an older one")
    answer = run("report", busy.store, "--output", str(page))
    assert (answer.code, list(tmp_path.iterdir())) == (0, [page])
    text = page.read_text()
    assert "<script" not in text
    assert not re.findall(r'<[^>]*\b(?:on\w+|href)\s*=|(?:src|url)\s*[=(]\s*"?(?!data:)\w', text)
    assert re.findall(r'<section id="(\w+)">', text) == list(PICTURES)
    assert text.count('src="data:image/svg+xml;base64,') == len(PICTURES)
    words = unescape(text)
    assert all(name in words for name in (SCRIPT, IMAGE, MATHS))


def test_a_catalog_without_anything_has_a_page_too(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    page = tmp_path / "page.html"
    assert run("report", catalog.store, "--output", str(page)).code == 0
    assert page.read_text().count("<img ") == len(PICTURES)
    catalog.session.close()


def test_a_missing_folder_or_library_is_reported_in_one_line(
    busy: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = run("report", busy.store, "--output", str(tmp_path / "missing" / "page.html"))
    assert (nowhere.code, "in a folder that exists" in nowhere.err) == (2, True)
    assert run("report", busy.store, "--output", str(tmp_path)).code == 2
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    without = run("report", busy.store, "--output", str(tmp_path / "page.html"))
    assert (without.code, "pip install 'polaris-spark[report]'" in without.err) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.programs
def test_a_browser_shows_every_picture_without_scripts_and_network(busy: Catalog, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run("report", busy.store, "--output", str(page)).code == 0
    try:
        browser = Browser()
    except StateError as error:
        unavailable(f"this test needs Chromium: {error}")
        raise
    with browser:
        browser.open(page.as_uri())
        assert browser.evaluate("return document.title") == "Catalog polaris"
        shown = browser.evaluate(
            "return [...document.images].map(i => [i.parentElement.id, i.complete, i.naturalWidth, i.height])"
        )
        assert [one[0] for one in shown] == list(PICTURES)
        assert all(complete and width > 500 and height > 100 for _, complete, width, height in shown)
        # Each is drawn, not blank: something of the ink's colour is in it.
        assert browser.evaluate(_INKED) == [True] * len(PICTURES)
        assert browser.evaluate("return document.scripts.length") == 0
        text = browser.evaluate(
            "document.querySelectorAll('details').forEach(d => d.open = true); return document.body.innerText"
        )
        assert all(name in text for name in (SCRIPT, IMAGE, MATHS, "update-table"))
        assert browser.complaints() == []
        asked = {url if url.startswith("file:") else url.partition(":")[0] for url in browser.requests()}
        assert asked == {page.as_uri(), "data"}
        # A name that broke out would have been refused by the page's own policy.
        injected = "const s = document.createElement('script'); s.text = 'document.title = 1'; document.body.append(s);"
        browser.evaluate(injected + "new Image().src = 'http://127.0.0.1:9/seen'; return 0")
        assert browser.evaluate("return document.title") == "Catalog polaris"
        refused = [line for line in browser.complaints() if "Content Security Policy" in line]
        assert len(refused) == 2
        assert browser.screenshot().startswith(b"\x89PNG")


_INKED = """
return [...document.images].map(image => {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
    let ink = 0;
    for (let i = 0; i < pixels.length; i += 4) ink += pixels[i + 3] > 0 && pixels[i] < 100;
    return ink > 500;
})
"""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn from now on."""
    figures: list[Figure] = []
    save = Figure.savefig

    def remembering(figure: Figure, *arguments: Any, **options: Any) -> None:
        save(figure, *arguments, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", remembering)
    return figures


def test_no_growth_is_drawn_into_the_future(busy: Catalog, clock: ManualClock, drawn: list[Figure]) -> None:
    now = clock.now_ms()
    plots.growth(*figures(busy, now))
    times = [at for axes in drawn[0].axes for line in axes.lines for at in dates.date2num(line.get_xdata())]
    assert times
    assert max(times) <= dates.date2num(datetime.fromtimestamp(now / 1_000, timezone.utc))


def test_no_legend_hides_a_bar(busy: Catalog, clock: ManualClock, drawn: list[Figure]) -> None:
    history, _, rows = figures(busy, clock.now_ms())
    plots.commits_over_time(history)
    plots.garbage(rows)
    for figure in drawn:
        legends = [*figure.legends, *(one for axes in figure.axes if (one := axes.get_legend()))]
        assert legends
        for legend in legends:
            assert not any(
                legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes
            )


def test_the_legends_of_the_demo_hide_nothing(tmp_path: Path, drawn: list[Figure]) -> None:
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)
    changes = [
        {"name": "nyc.flights", "principal": principal, "changed_at": start + timedelta(seconds=10 * i)}
        for i, principal in enumerate(picture.COLORS)
    ]
    picture.draw(tmp_path / "demo.png", {1: 900, 2: 1_000}, {1: 1_000, 2: 1_000}, changes)
    (figure,) = drawn
    for axes in figure.axes:
        legend = axes.get_legend()
        assert legend is not None
        assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_a_count_of_one_uses_the_singular(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("only")
    found = figures(catalog, catalog.session.connection.clock.now_ms())
    assert ("1", "namespace") in tiles(Figures(*found))
    assert ("0", "tables") in tiles(Figures(*found))
    catalog.session.close()


def test_writers_are_principals(busy: Catalog, clock: ManualClock) -> None:
    found = Figures(*figures(busy, clock.now_ms()))
    (writers,) = [one for one in sections(found) if one.title == "Writers"]
    assert [name for name, _ in writers.listed.rows] == [
        name for name, _ in found.history.writers.most_common()
    ]
    assert "node" not in writers.words
