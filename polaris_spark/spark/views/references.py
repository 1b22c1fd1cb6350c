"""The system view `references`: one row for each mutable row of a realm, such as a branch and its newest commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from pyspark.sql.types import ArrayType, LongType, StructField, StructType, TimestampType

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import READS_ALL, Scope
from polaris_spark.backends.base import Split
from polaris_spark.catalog.catalogs.references import CATALOGS
from polaris_spark.commits.rows import Head
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import BOOLEAN, INT, LONG, STRING, TIMESTAMP, ViewColumn, micros
from polaris_spark.spark.views.history import sees_log
from polaris_spark.spark.views.view import ScanRequest, SystemView, Weighted
from polaris_spark.system.registry import ROOT

_decode = msgspec.msgpack.Decoder(Head).decode

_RECENT = ArrayType(
    StructType(
        [
            StructField("commit_id", LongType()),
            StructField("number", LongType()),
            StructField("committed_at", TimestampType()),
        ]
    )
)


class ReferencesTask(NamedTuple):
    """A database split that one task reads. `catalogs` contains the names of catalogs, by entity id in hexadecimal."""

    realm: str
    """Name of the realm."""
    split: Split
    catalogs: dict[str, str]


class ReferenceViewRow(NamedTuple):
    """A row of the database table `references`. `head` is the newest commit; None if the row's value is not a head."""

    realm: str
    row_name: str
    name: str
    generation: int | None
    kind: str
    catalog: str | None
    branch: str | None
    version: bytes
    size: int
    head: Head | None


class References(SystemView[ReferencesTask, ReferenceViewRow]):
    """A system view with one row for each reference."""

    shown = (Need(READS_ALL, On.CATALOG),)
    comment = (
        "Mutable rows of a realm, such as branches of catalogs, each with the head of a history; branches and tags of "
        "tables are in the view refs"
    )
    rows_per_partition = 1
    columns = (
        ViewColumn("realm", STRING, "Realm that the reference belongs to", lambda row: row.realm),
        ViewColumn("name", STRING, "Name of the reference", lambda row: row.name),
        ViewColumn(
            "generation",
            LONG,
            "Generation of the reference: new whenever the name is created again; null for the registry",
            lambda row: row.generation,
        ),
        ViewColumn("row_name", STRING, "Name of the row: name and generation", lambda row: row.row_name),
        ViewColumn(
            "kind",
            STRING,
            "registry (root), catalogs; branch, metrics, deletions, queue or policies (of a catalog); or other",
            lambda row: row.kind,
        ),
        ViewColumn(
            "catalog",
            STRING,
            "Name of the catalog that the reference belongs to, if any",
            lambda row: row.catalog,
        ),
        ViewColumn("branch", STRING, "Name of the branch, if it is one", lambda row: row.branch),
        ViewColumn(
            "version",
            STRING,
            "Version token of the swap that wrote the row, in hexadecimal",
            lambda row: row.version.hex(),
        ),
        ViewColumn("bytes", INT, "Bytes of the row's value", lambda row: row.size),
        ViewColumn("commit_id", LONG, "Newest commit", lambda row: row.head and row.head.commit),
        ViewColumn("number", LONG, "Number of the newest commit", lambda row: row.head and row.head.number),
        ViewColumn(
            "committed_at",
            TIMESTAMP,
            "Time of the newest commit",
            lambda row: row.head and micros(row.head.time),
        ),
        ViewColumn(
            "floor_number",
            LONG,
            "History floor: commits below this number may be gone",
            lambda row: row.head and row.head.floor_number,
        ),
        ViewColumn(
            "floor_at",
            TIMESTAMP,
            "Time of the history floor; null if nothing was trimmed",
            lambda row: micros(row.head.floor_time) if row.head and row.head.floor_time else None,
        ),
        ViewColumn(
            "fence",
            LONG,
            "Fence: prepared rows with lower ids must be written again; null if there is none",
            lambda row: (row.head.fence or None) if row.head else None,
        ),
        ViewColumn(
            "sealed",
            BOOLEAN,
            "Whether the reference was dropped",
            lambda row: row.head.sealed if row.head else None,
        ),
        ViewColumn(
            "recent",
            _RECENT,
            "Recent heads kept for recovery, the newest first",
            lambda row: (
                [
                    {"commit_id": one.commit, "number": one.number, "committed_at": micros(one.time)}
                    for one in row.head.recent
                ]
                if row.head
                else None
            ),
        ),
    )

    def plan(self, request: ScanRequest) -> list[Weighted[ReferencesTask]]:
        request.refuse_as_of(
            "it shows the rows of the database as they are now; the view commits shows their history"
        )
        name = request.options.realm
        if not request.condition("realm").allows(name):
            return []
        realm = request.store.realm(name)
        catalogs = {f"{catalog.entity_id:x}": catalog.name for catalog in realm.catalogs()}
        splits = request.store.backend.splits("references", [realm.store.realm], request.options.splits)
        return [Weighted(ReferencesTask(name, split, catalogs), 1) for split in splits]

    def rows(
        self, store: ReadStore, task: ReferencesTask, needs: frozenset[str]
    ) -> Iterator[ReferenceViewRow]:
        for batch in store.backend.scan(task.split):
            columns = (batch.column(name).to_pylist() for name in ("name", "version", "value"))
            for row_name, version, value in zip(*columns, strict=True):
                yield _row(task, row_name, version, value)

    def sees(self, store: ReadStore, scope: Scope, row: ReferenceViewRow) -> bool:
        return sees_log(scope, row.name)


SYSTEM_VIEW = References()


_BESIDE = ("metrics", "deletions", "queue", "policies")
"""Last levels of the names of those references of a catalog that are not branches."""


def _row(task: ReferencesTask, row_name: str, version: bytes, value: bytes) -> ReferenceViewRow:
    name, generation = _split_generation(row_name)
    kind, catalog, branch = "other", None, None
    levels = name.split("/", 3)
    if name == ROOT:
        kind = "registry"
    elif name == CATALOGS:
        kind = "catalogs"
    elif len(levels) == 4 and levels[0] == "cat" and levels[2] == "heads":
        kind, catalog, branch = "branch", task.catalogs.get(levels[1]), levels[3]
    elif len(levels) == 3 and levels[0] == "cat" and levels[2] in _BESIDE:
        kind, catalog = levels[2], task.catalogs.get(levels[1])
    return ReferenceViewRow(
        task.realm, row_name, name, generation, kind, catalog, branch, version, len(value), _head(value)
    )


def _split_generation(row_name: str) -> tuple[str, int | None]:
    name, mark, generation = row_name.rpartition("@")
    try:
        return (name, int(generation, 16)) if mark else (row_name, None)
    except ValueError:
        return row_name, None


def _head(value: bytes) -> Head | None:
    try:
        return _decode(value)
    except msgspec.MsgspecError:
        return None
