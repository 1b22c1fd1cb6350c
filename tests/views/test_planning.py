"""Planning: the partitions contain every row once, as of the pinned head. Pushed filters only reduce the work."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from polaris_spark.catalog.entities.identifiers import dotted, parse_dotted
from polaris_spark.spark.datasource import PolarisObjects
from polaris_spark.spark.views import VIEWS
from tests.names import unchecked_names
from tests.views.catalogs import EMPTY_IN_SHOP, OF_ENTITIES, OF_HISTORY, Catalog, Row, batches, reader, rows

NAMESPACES = ("db", "db2", "a.b", "`", "\x01", "zebra")
TABLES = 1_500


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    """Tables in several namespaces, some of them nested. Their names must be escaped in keys."""
    catalog = Catalog(tmp_path_factory.mktemp("big") / "c.db")
    with unchecked_names():
        for namespace in NAMESPACES:
            catalog.namespace(namespace)
        catalog.table("db", "t\x02odd")
    catalog.namespace("db", "inner")
    for i in range(TABLES):
        catalog.table((*NAMESPACES, "db%1Finner")[i % 7], f"t{i}")
    yield catalog
    catalog.session.close()


def test_every_table_is_in_one_partition(big: Catalog) -> None:
    options = {"store": big.store, "splits": "3"}
    assert len(reader("tables", **options).partitions()) == 3
    names = [row["name"] for row in rows("tables", **options)]
    assert sorted(names) == sorted([f"t{i}" for i in range(TABLES)] + ["t\x02odd"])


@pytest.mark.parametrize("splits", ["1", "2", "7", "64"])
def test_any_number_of_splits_gives_the_same_rows(big: Catalog, splits: str) -> None:
    for view in (*OF_ENTITIES, *OF_HISTORY):
        one = rows(view, store=big.store, splits="1")
        assert sorted(rows(view, store=big.store, splits=splits), key=repr) == sorted(one, key=repr)


def test_batches_are_bounded(big: Catalog) -> None:
    sizes = [batch.num_rows for batch in batches(reader("index", store=big.store, splits="1"))]
    assert sum(sizes) == TABLES + 8
    assert max(sizes) <= 1_024


def test_large_rows_come_in_small_batches(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    for i in range(12):
        catalog.table("db", f"t{i}", properties={"big": "x" * 1_000_000})
    found = list(batches(reader("tables", store=catalog.store)))
    assert sum(batch.num_rows for batch in found) == 12
    assert max(batch.nbytes for batch in found) < 6 * 2**20
    catalog.session.close()


def test_columns_that_the_index_knows_are_read_without_contents(
    shop: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = PolarisObjects({"view": "tables", "store": shop.store})
    schema = source.schema()
    names = type(schema)([schema[name] for name in ("namespace", "name", "entity_id", "content_id")])
    expected = [tuple(row[name] for name in names.names) for row in rows("tables", store=shop.store)]
    monkeypatch.setattr("polaris_spark.spark.views.entities.with_loaded", None)
    monkeypatch.setattr("polaris_spark.spark.views.tables.with_loaded", None)
    found = [tuple(row.values()) for b in batches(source.reader(names)) for row in b.to_pylist()]
    assert found == expected


def test_little_is_read_in_one_partition(shop: Catalog) -> None:
    for view in (*OF_ENTITIES, *OF_HISTORY):
        assert len(reader(view, store=shop.store, splits="50").partitions()) == 1


def test_commits_made_after_planning_do_not_show(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    catalog.namespace("db")
    catalog.table("db", "before")
    views = (*OF_ENTITIES, *OF_HISTORY)
    planned = {view: reader(view, store=catalog.store) for view in views}
    partitions = {view: found.partitions() for view, found in planned.items()}
    before = {view: rows(view, store=catalog.store) for view in views}
    catalog.namespace("after")
    catalog.table("db", "after")
    catalog.view("db", "after_view", "SELECT 1")
    catalog.set_property("db", "before", "x", "y")
    catalog.snapshot("db", "before", 1)
    for view in views:
        read = [b for partition in partitions[view] for b in planned[view].read(partition)]
        assert sum(batch.num_rows for batch in read) == len(before[view])
        assert len(rows(view, store=catalog.store)) > len(before[view])
    catalog.session.close()


def test_a_schema_of_fewer_columns_reads_only_those(shop: Catalog) -> None:
    source = PolarisObjects({"view": "tables", "store": shop.store})
    schema = source.schema()
    some = type(schema)([schema["name"], schema["snapshot_count"]])
    found = [row for batch in batches(source.reader(some)) for row in batch.to_pylist()]
    assert sorted(found, key=repr) == [
        {"name": "orders", "snapshot_count": 2},
        {"name": "returns", "snapshot_count": 0},
    ]


Test = Callable[[Row], bool]


def _filters(sample: list[Row], random: random.Random) -> Iterator[tuple[Filter, Test]]:
    """Yield filters on columns of some rows, each with a function that applies it to a row."""
    row = random.choice(sample)
    for name, value in row.items():
        if not isinstance(value, str | int | datetime):
            continue
        path = (name,)
        yield EqualTo(path, value), _compared(name, lambda x, v=value: x == v)
        others = (value, random.choice(sample)[name])
        if None not in others:
            yield In(path, others), _compared(name, lambda x, v=others: x in v)
        if isinstance(value, str):
            start = value[: random.randint(0, len(value))]
            yield StringStartsWith(path, start), _compared(name, lambda x, v=start: x.startswith(v))
        elif not isinstance(value, bool):
            yield GreaterThan(path, value), _compared(name, lambda x, v=value: x > v)
            yield GreaterThanOrEqual(path, value), _compared(name, lambda x, v=value: x >= v)
            yield LessThan(path, value), _compared(name, lambda x, v=value: x < v)
            yield LessThanOrEqual(path, value), _compared(name, lambda x, v=value: x <= v)
        yield Not(EqualTo(path, value)), _compared(name, lambda x, v=value: x != v)


def _compared(name: str, test: Callable[[Any], bool]) -> Test:
    return lambda row: row[name] is not None and test(row[name])


@pytest.mark.parametrize("view", [view for view in VIEWS if view not in EMPTY_IN_SHOP])
def test_pushed_filters_leave_out_nothing_that_passes_them(shop: Catalog, view: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    choose = random.Random(seed)
    options = {"store": shop.store, "unreadable": "report"}  # the snapshots' manifest lists do not exist
    everything = rows(view, **options)
    for _ in range(2):
        for pushed, passes in list(_filters(everything, choose)):
            read = rows(view, pushed, **options, prune="true")
            assert sorted(filter(passes, read), key=repr) == sorted(filter(passes, everything), key=repr), (
                pushed
            )


@pytest.mark.parametrize("namespace", [*NAMESPACES, "db.inner", "nothing", "x" * 5_000])
def test_a_namespace_is_found_in_its_own_key_range(big: Catalog, namespace: str) -> None:
    levels = ("db", "inner") if namespace == "db.inner" else (namespace,)
    wanted = EqualTo(("namespace",), dotted(levels))
    everything = rows("tables", store=big.store)
    found = rows("tables", wanted, store=big.store, prune="true")
    expected = [row for row in everything if row["namespace"] == dotted(levels)]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert bool(found) == (namespace in (*NAMESPACES, "db.inner"))


@pytest.mark.parametrize("start", ["d", "db", "db.", "db.in", "`", "`a", "z", ".", "", "q", "\x01"])
def test_a_beginning_of_namespaces_leaves_out_nothing(big: Catalog, start: str) -> None:
    wanted = StringStartsWith(("namespace",), start)
    everything = rows("index", store=big.store)
    found = rows("index", wanted, store=big.store, prune="true", splits="1")
    assert [row for row in found if row["namespace"].startswith(start)] == [
        row for row in everything if row["namespace"].startswith(start)
    ]
    if start == "db.":
        assert len(found) < len(everything)


def test_a_table_is_found_by_its_name_without_reading_others(big: Catalog) -> None:
    both = (EqualTo(("namespace",), "zebra"), EqualTo(("name",), "t5"))
    assert [row["name"] for row in rows("tables", *both, store=big.store, prune="true")] == ["t5"]
    name = EqualTo(("name",), "t5")
    assert [row["name"] for row in rows("tables", name, store=big.store, prune="true")] == ["t5"]


def test_without_the_option_prune_filters_leave_out_nothing(big: Catalog) -> None:
    name = EqualTo(("name",), "t5")
    assert len(rows("tables", name, store=big.store)) == TABLES + 1


def test_times_cut_histories(shop: Catalog) -> None:
    everything = sorted(shop.read("commits"), key=lambda row: row["number"])
    moment = everything[4]["committed_at"]
    later = shop.read("commits", GreaterThan(("committed_at",), moment), prune="true")
    assert sorted(row["number"] for row in later) == [4, 5, 6, 7, 8]
    much_later = GreaterThan(("committed_at",), moment + timedelta(days=1))
    assert shop.read("commits", much_later, prune="true") == []
    earlier = shop.read("commits", LessThan(("committed_at",), moment), prune="true")
    assert sorted(row["number"] for row in earlier) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "levels",
    [("a",), ("a", "b"), ("a.b",), ("`",), ("", "x"), ("a", "", "b"), ("..", "`a`"), ("a`.`b",), ()],
)
def test_dotted_names_are_read_back(levels: tuple[str, ...]) -> None:
    assert parse_dotted(dotted(levels)) == levels


@pytest.mark.parametrize("text", [".", "a.", ".a", "a..b", "`", "`a", "`a`b", "`plain`"])
def test_texts_that_name_no_namespace_are_known(text: str) -> None:
    assert parse_dotted(text) is None
