"""Every view is compared with facts from other sources: Iceberg's metadata tables, pyiceberg, Spark's own statements,
SQL on the database, and the MessagePack in its rows."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from conftest import CatalogPlace
from polaris_spark.pyiceberg import PolarisCatalog
from polaris_spark.testing.waiting import wait_until
from tests.views.facts import HOME, STATEMENTS, TABLES, moment, name_of, of, same, same_as, together

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def home(spark: SparkSession) -> str:
    """A namespace with a long history, and the WHERE condition that selects it in a view."""
    for statement in STATEMENTS:
        spark.sql(statement.format(h=HOME))
    first = spark.table(f"{HOME}.third.snapshots").orderBy("committed_at").first()
    assert first is not None
    spark.sql(f"CALL polaris.system.rollback_to_snapshot('facts.third', {first.snapshot_id})")
    return "namespace = 'facts'"


@pytest.fixture(scope="module")
def catalog(place: CatalogPlace, home: str) -> Iterator[PolarisCatalog]:
    """The same catalog in pyiceberg."""
    with PolarisCatalog("polaris", store=place.store, warehouse=place.warehouse) as opened:
        yield opened


@pytest.fixture
def database(place: CatalogPlace, home: str) -> Iterator[sqlite3.Connection]:
    """The database, opened read-only."""
    connection = sqlite3.connect(f"file:{place.directory}/catalog.db?mode=ro", uri=True)
    yield connection
    connection.close()


def test_snapshots_are_those_of_icebergs_metadata_tables(spark: SparkSession, home: str) -> None:
    columns = "committed_at, snapshot_id, parent_id, operation, manifest_list, summary"
    ours = of(spark, "snapshots", home).selectExpr("name", *columns.split(", "))
    same(ours, together(spark, columns + " FROM {t}.snapshots"))


def test_the_current_snapshot_is_the_last_of_icebergs_history(spark: SparkSession, home: str) -> None:
    ours = of(spark, "snapshots", home).filter("is_current").select("name", "snapshot_id")
    last = (
        "max_by(snapshot_id, made_current_at) AS snapshot_id FROM {t}.history HAVING snapshot_id IS NOT NULL"
    )
    same(ours, together(spark, last))
    same(of(spark, "tables", home).selectExpr("name", "current_snapshot_id AS snapshot_id").dropna(), ours)


def test_refs_are_those_of_icebergs_metadata_tables(spark: SparkSession, home: str) -> None:
    settings = "type, snapshot_id, max_reference_age_in_ms, min_snapshots_to_keep, max_snapshot_age_in_ms"
    ours = of(spark, "refs", home).selectExpr("name", "ref", *settings.split(", "))
    same(ours, together(spark, f"name AS ref, {settings} FROM {{t}}.refs"))
    at = of(spark, "refs", home).selectExpr("name", "ref", "snapshot_at")
    join = "r.name AS ref, s.committed_at AS snapshot_at FROM {t}.refs r JOIN {t}.snapshots s USING (snapshot_id)"
    same(at, together(spark, join))
    listed = "map_from_entries(collect_list(struct(name, snapshot_id))) AS refs FROM {t}.refs"
    same(of(spark, "tables", home).select("name", "refs"), together(spark, listed))
    named = "explode(collect_list(name)) AS ref FROM {t}.refs"
    by_snapshot = of(spark, "snapshots", home).selectExpr("name", "explode(refs) AS ref")
    same(by_snapshot, together(spark, named))


def test_tables_count_what_icebergs_metadata_tables_count(spark: SparkSession, home: str) -> None:
    ours = of(spark, "tables", home).filter("current_snapshot_id IS NOT NULL")
    counts = (
        "count_if(content = 0) AS data_file_count, count_if(content > 0) AS delete_file_count, "
        "sum(file_size_in_bytes) AS file_bytes, sum(record_count) FILTER (WHERE content = 0) AS record_count"
    )
    names = ("data_file_count", "delete_file_count", "file_bytes", "record_count")
    theirs = together(spark, f"{counts} FROM {{t}}.files").filter("name <> 'empty'")
    same(ours.select("name", *names), theirs)
    kept = together(spark, "CAST(count(*) AS INT) AS snapshot_count FROM {t}.snapshots")
    same(of(spark, "tables", home).select("name", "snapshot_count"), kept)
    last = "max_by(file, struct(timestamp, file)) AS metadata_location FROM {t}.metadata_log_entries"
    same(of(spark, "tables", home).select("name", "metadata_location"), together(spark, last))


def test_tables_say_what_pyiceberg_reads(spark: SparkSession, home: str, catalog: PolarisCatalog) -> None:
    facts = []
    for table in TABLES:
        loaded = catalog.load_table(("facts", name_of(table)))
        metadata = loaded.metadata
        current = loaded.current_snapshot()
        facts.append(
            {
                "name": name_of(table),
                "uuid": str(metadata.table_uuid),
                "format_version": metadata.format_version,
                "location": metadata.location,
                "metadata_location": loaded.metadata_location,
                "last_updated_at": moment(metadata.last_updated_ms),
                "last_sequence_number": metadata.last_sequence_number,
                "current_snapshot_id": metadata.current_snapshot_id,
                "current_snapshot_at": moment(current.timestamp_ms if current else None),
                "column_names": [field.name for field in loaded.schema().fields],
                "current_schema_id": metadata.current_schema_id,
                "schema_count": len(metadata.schemas),
                "default_spec_id": metadata.default_spec_id,
                "partition_fields": [field.name for field in loaded.spec().fields],
                "properties": dict(metadata.properties),
            }
        )
    ours = of(spark, "tables", home)
    # Spark cannot sort maps; `same` shows them as lists.
    same_as(spark, ours, facts)
    for row in ours.collect():
        loaded = catalog.load_table(("facts", row.name))
        assert type(loaded.schema()).model_validate_json(row.schema) == loaded.schema()
        assert type(loaded.spec()).model_validate_json(row.partition_spec) == loaded.spec()
        assert type(loaded.sort_order()).model_validate_json(row.sort_order) == loaded.sort_order()


def _columns(
    type: DataType, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], bool, str | None, int]]:
    """Return the columns of a Spark type: path, whether required, comment, position."""
    children: list[tuple[str, DataType, bool, str | None]] = []
    if isinstance(type, StructType):
        children = [(f.name, f.dataType, f.nullable, f.metadata.get("comment")) for f in type.fields]
    elif isinstance(type, ArrayType):
        children = [("element", type.elementType, type.containsNull, None)]
    elif isinstance(type, MapType):
        children = [
            ("key", type.keyType, False, None),
            ("value", type.valueType, type.valueContainsNull, None),
        ]
    for position, (name, inner, nullable, comment) in enumerate(children):
        yield (*path, name), not nullable, comment, position
        yield from _columns(inner, (*path, name))


def test_current_schemas_are_those_of_sparks_tables_and_views(spark: SparkSession, home: str) -> None:
    facts = [
        {
            "name": name_of(name),
            "kind": "view" if name == "seen" else "table",
            "column_name": ".".join(path),
            "field_name": path[-1],
            "depth": len(path),
            "position": position,
            "required": required,
            "doc": comment,
            "is_identifier": (name, path) == ("orders", ("id",)),
        }
        for name in (*TABLES, "seen")
        for path, required, comment, position in _columns(spark.table(f"{HOME}.{name}").schema, ())
    ]
    ours = of(spark, "schemas", home).filter("is_current")
    same_as(spark, ours, facts)


def test_every_table_with_a_column_is_found_by_one_condition(spark: SparkSession, home: str) -> None:
    found = spark.sql("SELECT DISTINCT name FROM polaris.system.schemas WHERE column_name = 'price'")
    assert {row.name for row in found.collect()} >= {"orders"}
    now = spark.sql("SELECT name FROM polaris.system.schemas WHERE column_name = 'who.mails' AND is_current")
    assert [row.name for row in now.collect()] == ["orders"]


def test_all_schemas_are_those_that_pyiceberg_reads(
    spark: SparkSession, home: str, catalog: PolarisCatalog
) -> None:
    facts = []
    for table in TABLES:
        loaded = catalog.load_table(("facts", name_of(table)))
        for id, schema in loaded.schemas().items():
            for field_id in schema.field_ids:
                facts.append(
                    {
                        "name": name_of(table),
                        "schema_id": id,
                        "is_current": id == loaded.schema().schema_id,
                        "field_id": field_id,
                        "column_name": schema.find_column_name(field_id),
                        "required": schema.find_field(field_id).required,
                    }
                )
    same_as(spark, of(spark, "schemas", home).filter("kind = 'table'"), facts)
    assert len({fact["schema_id"] for fact in facts}) > 2


def test_namespaces_are_those_that_spark_shows(spark: SparkSession, home: str) -> None:
    ours = spark.table("polaris.system.namespaces")
    shown = [(row.namespace,) for row in spark.sql("SHOW NAMESPACES IN polaris").collect()]
    assert sorted(shown) == sorted((row.namespace,) for row in ours.filter("depth = 1").collect())
    inner = [row.namespace for row in spark.sql(f"SHOW NAMESPACES IN {HOME}").collect()]
    assert inner == [row.namespace for row in ours.filter("parent = 'facts'").collect()]
    [described] = (
        spark.sql(f"DESCRIBE NAMESPACE EXTENDED {HOME}").filter("info_name = 'Properties'").collect()
    )
    [row] = ours.filter("namespace = 'facts'").collect()
    assert "(colour,red)" in described.info_value
    assert row.properties["colour"] == "red"
    assert row.properties["comment"] == "what is known"


def test_views_are_those_that_pyiceberg_and_spark_read(
    spark: SparkSession, home: str, catalog: PolarisCatalog
) -> None:
    loaded = catalog.load_view("facts.seen")
    metadata, version = loaded.metadata, loaded.current_version()
    [text] = [one.root.sql for one in version.representations]
    fact = {
        "name": "seen",
        "uuid": metadata.view_uuid,
        "format_version": metadata.format_version,
        "location": metadata.location,
        "current_version_id": metadata.current_version_id,
        "version_count": len(metadata.versions),
        "last_updated_at": moment(version.timestamp_ms),
        "sql": {"spark": text},
        "column_names": [field.name for field in loaded.schema().fields],
        "properties": dict(metadata.properties),
    }
    same_as(spark, of(spark, "views", home), [fact])
    assert [row.viewName for row in spark.sql(f"SHOW VIEWS IN {HOME}").collect()] == ["seen"]
    assert spark.sql(text).collect() == spark.table(f"{HOME}.seen").collect()


def test_the_index_names_what_spark_shows(spark: SparkSession, home: str) -> None:
    shown = {("table", row.tableName) for row in spark.sql(f"SHOW TABLES IN {HOME}").collect()}
    shown |= {("view", row.viewName) for row in spark.sql(f"SHOW VIEWS IN {HOME}").collect()}
    shown |= {("namespace", "in.ner")}
    assert {(row.kind, row.name) for row in of(spark, "index", home).collect()} == shown


def test_changes_are_the_versions_that_iceberg_logged(spark: SparkSession, home: str) -> None:
    logged = together(spark, "timestamp AS changed_at FROM {t}.metadata_log_entries")
    of_entities = spark.sql(
        "SELECT t.name, c.changed_at FROM polaris.system.changes c JOIN polaris.system.tables t USING (entity_id) "
        f"WHERE t.{home} AND c.action IN ('create-table', 'update-table')"
    )
    same(of_entities, logged)
    added = spark.sql(
        "SELECT t.name, CAST(c.summary['snapshot-id'] AS BIGINT) AS snapshot_id FROM polaris.system.changes c "
        f"JOIN polaris.system.tables t USING (entity_id) WHERE t.{home} AND c.summary['snapshot-id'] IS NOT NULL"
    ).distinct()
    same(added, together(spark, "snapshot_id FROM {t}.snapshots"))


def test_changes_list_the_operations_in_order(spark: SparkSession, home: str) -> None:
    rows = spark.sql(
        "SELECT action, name, old_name FROM polaris.system.changes "
        "WHERE namespace = 'facts' AND name IN ('moved', 'dropped') ORDER BY number, position"
    ).collect()
    assert rows == [
        Row(action="rename-table", name="moved", old_name="before"),
        Row(action="create-table", name="dropped", old_name=None),
        Row(action="drop-table", name="dropped", old_name=None),
    ]
    views = of(spark, "changes", home).filter("kind = 'view'").orderBy("number").collect()
    assert [(row.action, row.name) for row in views] == [("create-view", "seen"), ("update-view", "seen")]


def test_metrics_are_those_of_the_commits_that_spark_made(spark: SparkSession, home: str) -> None:
    snapshots = together(spark, "operation, snapshot_id FROM {t}.snapshots").collect()
    made = {(row.name, row.snapshot_id, row.operation) for row in snapshots}
    # Iceberg's client sends no report of the snapshot that CREATE TABLE AS SELECT begins with.
    sent = {one for one in made if one[0] != "third"}

    def reported() -> set[tuple[str, int, str]]:
        found = of(spark, "metrics", home).filter("report_type = 'commit-report'").collect()
        names = {"before": "moved"}
        return {(names.get(row.name, row.name), row.snapshot_id, row.operation) for row in found}

    wait_until(lambda: reported() >= sent, "reports, which are committed after a while, are there")
    assert reported() <= made


Fact = dict[str, Any]


def steady(frame: Callable[[], DataFrame], facts: Callable[[], list[Fact]]) -> tuple[DataFrame, list[Fact]]:
    """Read a view and the facts of the same moment. Metrics reports can be committed at any time."""
    while True:
        before = facts()
        ours = frame().localCheckpoint()
        if facts() == before:
            return ours, before


def _instance(spark: SparkSession) -> str:
    [row] = spark.table("polaris.system.realms").filter("realm = 'default'").collect()
    found: str = row.instance
    return found


def test_objects_are_the_rows_of_the_database(
    spark: SparkSession, home: str, database: sqlite3.Connection
) -> None:
    query = "SELECT id, count(*), sum(length(value)) FROM objects WHERE realm = ? GROUP BY id"
    realm = _instance(spark)

    def facts() -> list[Fact]:
        rows = database.execute(query, (realm,))
        return [{"id": id, "parts": parts, "bytes": size} for id, parts, size in rows]

    same_as(spark, *steady(lambda: spark.table("polaris.system.objects"), facts))


HEAD = (
    "commit_id",
    "number",
    "time",
    "floor_number",
    "floor_time",
    "recent",
    "fence",
    "sealed",
    "move",
    "time_resets",
    "slots",
)


def _heads(database: sqlite3.Connection, realm: str) -> Iterator[tuple[str, bytes, bytes, Fact]]:
    """Return name, version, value and content of every reference of a realm."""
    for name, version, value in database.execute(
        'SELECT name, version, value FROM "references" WHERE realm = ?', (realm,)
    ):
        yield name, version, value, dict(zip(HEAD, msgspec.msgpack.decode(value), strict=True))


def test_references_are_the_rows_of_the_database(
    spark: SparkSession, home: str, database: sqlite3.Connection
) -> None:
    realm = _instance(spark)

    def facts() -> list[Fact]:
        return [
            {
                "row_name": name,
                "version": version.hex(),
                "bytes": len(value),
                "committed_at": moment(head["time"]),
                **{part: head[part] for part in ("commit_id", "number", "floor_number", "sealed")},
            }
            for name, version, value, head in _heads(database, realm)
        ]

    same_as(spark, *steady(lambda: spark.table("polaris.system.references"), facts))


def _commits(database: sqlite3.Connection, realm: str) -> dict[int, Fact]:
    """Return every commit object of a realm, with its predecessor, decoded as MessagePack."""
    found = {}
    for id, value in database.execute("SELECT id, value FROM objects WHERE realm = ? AND part = 0", (realm,)):
        length = struct.unpack_from(">BHI", value)[2]
        type, _, _, weak = msgspec.msgpack.decode(value[7 : 7 + length])
        if type == "commit":
            number, time, _, parents, *_ = msgspec.msgpack.decode(value[7 + length :])
            parent = weak[parents[0] - 1] if parents else None
            found[id] = {"commit_id": id, "number": number, "committed_at": moment(time), "parent_id": parent}
    return found


def test_commits_are_the_commit_objects_of_the_database(
    spark: SparkSession, place: CatalogPlace, home: str, database: sqlite3.Connection
) -> None:
    realm = _instance(spark)

    def facts() -> list[Fact]:
        commits, found = _commits(database, realm), []
        for name, _, _, head in _heads(database, realm):
            id = None if head["sealed"] else head["commit_id"]
            while id is not None and commits[id]["number"] >= head["floor_number"]:
                found.append({"reference": name.rpartition("@")[0] or name, **commits[id]})
                id = commits[id]["parent_id"]
        return found

    every = spark.read.format("polaris-objects").options(view="commits", store=place.store)
    ours, theirs = steady(every.load, facts)
    same_as(spark, ours, theirs)
    main = "catalog = 'polaris' AND reference LIKE '%/heads/main'"
    same(spark.table("polaris.system.commits"), ours.filter(main))
    counted = spark.sql(
        "SELECT k.commit_id FROM polaris.system.commits k LEFT JOIN polaris.system.changes c USING (commit_id) "
        "GROUP BY k.commit_id HAVING max(k.changes) <> count(c.number)"
    )
    assert counted.count() == 0


def test_records_of_the_store_are_those_of_the_database(
    spark: SparkSession, home: str, database: sqlite3.Connection
) -> None:
    spark.sql("CALL polaris.system.trim(dry_run => true)")
    records = {
        name: msgspec.msgpack.decode(value)
        for name, value in database.execute(
            "SELECT name, value FROM \"references\" WHERE realm = '::system::'"
        )
    }
    same_as(
        spark,
        spark.table("polaris.system.realms"),
        [
            {
                "realm": name.removeprefix("realm/"),
                "instance": one["instance"],
                "state": one["state"],
                "created_at": moment(one["created_ms"]),
                "revisions": one["revisions"],
            }
            for name, one in records.items()
            if name.startswith("realm/")
        ],
    )
    same_as(
        spark,
        spark.table("polaris.system.nodes"),
        [
            {
                "node": int(name.removeprefix("node/")),
                "holder": one["holder"],
                "start_at": moment(one["start_ms"]),
                "end_at": moment(one["end_ms"]),
                "released": one["released"],
            }
            for name, one in records.items()
            if name.startswith("node/")
        ],
    )
    same_as(
        spark,
        spark.table("polaris.system.tasks"),
        [
            {
                "kind": name.split("/")[1],
                "scope": "/".join(name.split("/")[2:]),
                "run": one["run"].hex(),
                "holder": one["holder"],
                "started_at": moment(one["started_ms"]),
                "lease_ends_at": moment(one["until_ms"]),
                "released": one["released"],
                "outcome": one["outcome"] or None,
                "doing": one["doing"] or None,
                "done": one["done"],
                "total": one["total"] or None,
            }
            for name, one in records.items()
            if name.startswith("task/")
        ],
    )
