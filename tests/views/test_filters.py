"""Random filters on random catalogs: a pushed filter never omits a row that it accepts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession, functions

from polaris_spark.commits.change import Operation
from polaris_spark.jobs.queue.history import commit_queue
from polaris_spark.maintenance.deletion_records import DeletedFile, DeletedFiles, record_deletions
from polaris_spark.maintenance.queue.changes import AddRun
from polaris_spark.maintenance.queue.rows import RunRecord
from polaris_spark.spark.views import VIEWS
from polaris_spark.spark.views.planner import columns, count
from tests.views.catalogs import OF_ENTITIES, OF_HISTORY, Catalog, Row, having, rows
from tests.views.filters import Filters, passing
from tests.views.lakes import random_lake

SEED = random.SystemRandom().randrange(2**32)
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PRUNED = [
    *[
        (view, column)
        for column in ("catalog", "namespace", "name", "entity_id")
        for view in (*OF_ENTITIES, "files", "lineage")
    ],
    *[(view, "commit_id") for view in OF_HISTORY],
    *[(view, column) for column in ("catalog", "reference", "number", "committed_at") for view in OF_HISTORY],
    *[("objects", column) for column in ("id", "type", "created_at")],
    ("namespaces", "parent"),
    *[("schemas", column) for column in ("kind", "is_current")],
    *[(view, "catalog") for view in ("metrics", "deletions", "runs")],
]
"""Views and columns whose conditions leave something out."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """One of three catalogs of a random store."""
    print("seed", SEED)
    catalogs = random_lake(tmp_path_factory.mktemp("lake") / "c.db", SEED)
    for number, one in enumerate(catalogs[:-1]):
        batch = DeletedFiles(
            number, "ann", "expire", number, "db.t", "deleted", (DeletedFile("a", "data", 7),)
        )
        record_deletions(one.session.catalog, Operation(b"", "ann"), [batch] * (number + 1), keep_ms=10**13)
        for begun in range(number + 1):
            run = RunRecord(
                bytes([number, begun]), "trim", "{}", "main", "schedule", "nightly", 1, "ann", "host", number,
                begun + 1, "succeeded", "", {"rows": begun}
            )  # fmt: skip  # reads better as a row
            change = AddRun(one.session.connection.clock, Operation(b"", "ann"), run, keep_ms=10**13)
            commit_queue(one.session.catalog, change)
    yield catalogs[0]
    for catalog in catalogs:
        catalog.session.close()


def of(view: str, lake: Catalog) -> dict[str, str]:
    """Return the options with which a view is read. The manifests of the snapshots do not exist."""
    options = {"store": lake.store, "prune": "true"}
    return {**options, "unreadable": "report"} if view == "files" else options


def counted(found: list[Row]) -> Counter[str]:
    """Return the number of occurrences of each row."""
    return Counter(map(repr, found))


@pytest.mark.parametrize("view", VIEWS)
def test_filters_leave_out_no_row_that_passes_them_and_add_none(lake: Catalog, view: str) -> None:
    print("seed", SEED)
    options = of(view, lake)
    everything = rows(view, **options)
    assert everything, f"teach tests/views/lakes.py to fill the view {view}"
    filters = Filters(everything, random.Random(f"{view} {SEED}"))
    for _ in range(60):
        conditions = filters.some()
        pushed = [one.pushed for one in conditions]
        found = rows(view, *pushed, **options, splits=filters.random.choice("14"))
        assert counted(passing(found, conditions)) == counted(passing(everything, conditions)), pushed
        assert counted(found) <= counted(everything), pushed


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_same_rows_for_every_selection_of_columns(lake: Catalog, view: str) -> None:
    options = of(view, lake)
    everything = rows(view, **options)
    for column in everything[0]:
        found = rows(view, columns=[column], **options)
        assert counted(found) == counted([{column: row[column]} for row in everything])
    if columns(options | {"view": view})["counted"]:
        assert count(options | {"view": view}) == len(everything)


@pytest.mark.parametrize(("view", "column"), PRUNED)
def test_conditions_on_columns_that_say_where_rows_lie_leave_some_out(
    lake: Catalog, view: str, column: str
) -> None:
    from pyspark.sql.datasource import EqualTo

    everything = rows(view, **of(view, lake))
    least = min(
        Counter(row[column] for row in everything if row[column] is not None).items(), key=lambda x: x[1]
    )
    found = rows(view, EqualTo((column,), least[0]), **of(view, lake))
    assert sum(row[column] == least[0] for row in found) == least[1]
    assert len(found) < len(everything) or least[1] == len(everything)


@pytest.mark.spark
@pytest.mark.parametrize("view", VIEWS)
def test_spark_finds_the_same_whether_it_pushes_filters_or_not(
    spark: SparkSession, lake: Catalog, view: str
) -> None:
    print("seed", SEED)
    everything = rows(view, **of(view, lake))
    filters = Filters(everything, random.Random(f"spark {view} {SEED}"))
    columns = filters.columns
    conditions = filters.some()
    expected = Counter(tuple(row[name] for name in columns) for row in passing(everything, conditions))
    for on in ("false", "true"):
        spark.conf.set(PUSHDOWN, on)
        try:
            source = spark.read.format("polaris-objects").options(view=view, **of(view, lake))
            frame = source.load().select(*[functions.col(name) for name in columns])
            for one in conditions:
                frame = frame.filter(one.column())
            found = [tuple(row.values()) for row in frame.toArrow().to_pylist()]
        finally:
            spark.conf.unset(PUSHDOWN)
        assert Counter(found) == expected, (on, [one.pushed for one in conditions])


@pytest.mark.parametrize("view", [view for view in having("catalog", "entity_id") if view not in OF_HISTORY])
def test_a_catalog_without_anything_has_no_rows(lake: Catalog, view: str) -> None:
    assert rows(view, **of(view, lake), catalog="empty") == []
    assert {row["catalog"] for row in rows(view, **of(view, lake))} == {"one", "t.w`o"}


def test_a_catalog_without_anything_has_its_first_commit(lake: Catalog) -> None:
    assert [row["number"] for row in rows("commits", store=lake.store, catalog="empty")] == [0]
    assert rows("changes", store=lake.store, catalog="empty") == []


def test_a_branch_can_be_selected_and_dropped_branches_are_marked(lake: Catalog) -> None:
    main, dev = (rows("tables", store=lake.store, catalog="one", branch=branch) for branch in ("main", "dev"))
    assert counted(main) == counted(dev) != Counter()
    lake.namespace("only here")
    assert len(rows("namespaces", store=lake.store, catalog="one")) == 1 + len(
        rows("namespaces", store=lake.store, catalog="one", branch="dev")
    )
    sealed = {row["branch"]: row["sealed"] for row in rows("references", store=lake.store) if row["branch"]}
    assert sealed == {"main": False, "dev": False, "gone@1/x": True}
    # Its log is kept, so the log has it before it is archived, too.
    assert "gone@1/x" in {row["reference"].split("/", 3)[-1] for row in rows("commits", store=lake.store)}
