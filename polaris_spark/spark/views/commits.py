"""The system view `commits`: one row for each commit of the requested references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql.types import IntegerType, LongType, MapType, StringType, StructField, StructType

from polaris_spark.access.needs import Need, On
from polaris_spark.access.scopes import READS_ALL, Scope
from polaris_spark.commits.rows import Entries, LogEntry
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import (
    BOOLEAN,
    INT,
    LONG,
    LONGS,
    STRING,
    STRINGS,
    TIMESTAMP,
    ViewColumn,
    micros,
)
from polaris_spark.spark.views.history import HistoryView, Logged, sees_log
from polaris_spark.store.objects import ObjectStore

_ENTRIES = "entries"

_INDEX_SIZE = StructType([StructField("tree", LongType()), StructField("embedded", IntegerType())])


class CommitRow(NamedTuple):
    """A commit and its log entries. `entries` is empty if no requested column needs the log entries."""

    logged: Logged
    entries: tuple[LogEntry, ...]


class Commits(HistoryView[CommitRow]):
    """A system view with one row for each commit."""

    shown = (Need(READS_ALL, On.CATALOG),)
    comment = "The history of references, one row per commit"
    columns = (
        ViewColumn(
            "catalog",
            STRING,
            "Catalog of the reference; null for references of the realm itself",
            lambda row: row.logged.task.catalog,
        ),
        ViewColumn(
            "reference",
            STRING,
            "Reference to whose history the commit belongs",
            lambda row: row.logged.task.reference,
        ),
        ViewColumn("commit_id", LONG, "Id of the commit", lambda row: row.logged.id),
        ViewColumn(
            "number",
            LONG,
            "Number of the commit in its history, beginning with 0",
            lambda row: row.logged.commit.number,
        ),
        ViewColumn(
            "committed_at",
            TIMESTAMP,
            "Time of the commit, later than its parent's",
            lambda row: micros(row.logged.commit.time),
        ),
        ViewColumn(
            "state_stored",
            BOOLEAN,
            "Whether the commit is stored, so that its state can be read; false if only its log is kept",
            lambda row: row.logged.is_stored,
        ),
        ViewColumn(
            "parent_id",
            LONG,
            "Commit before this one; null for the first",
            lambda row: row.logged.commit.parents[0] if row.logged.commit.parents else None,
        ),
        ViewColumn(
            "merged_ids",
            LONGS,
            "Commits of other references whose content this one merged",
            lambda row: row.logged.commit.merged,
        ),
        ViewColumn(
            "entries_id",
            LONG,
            "Object that holds the log entries; null if there are none, or they are archived",
            lambda row: row.logged.commit.entries or None,
        ),
        ViewColumn("changes", INT, "Number of log entries", lambda row: len(row.entries), _ENTRIES),
        ViewColumn(
            "principals",
            STRINGS,
            "Authors of the changes, each once, in order",
            lambda row: list(dict.fromkeys(entry.principal for entry in row.entries)),
            _ENTRIES,
        ),
        ViewColumn(
            "actions",
            STRINGS,
            "Actions of the changes, each once, in order",
            lambda row: list(dict.fromkeys(entry.action for entry in row.entries)),
            _ENTRIES,
        ),
        ViewColumn(
            "indexes",
            MapType(StringType(), _INDEX_SIZE),
            "Indexes of the commit: number of entries in the tree, and of changes in the commit that override them. "
            "Empty if only its log is kept",
            lambda row: [
                (name, {"tree": root.count, "embedded": len(root.keys)})
                for name, root in zip(
                    row.logged.commit.index_names, row.logged.commit.index_roots, strict=True
                )
            ],
        ),
    )

    def of(self, store: ObjectStore, commits: list[Logged], needs: frozenset[str]) -> Iterator[CommitRow]:
        entries = entries_of(store, commits) if _ENTRIES in needs else {}
        for logged in commits:
            yield CommitRow(logged, entries.get(logged.id, ()))

    def sees(self, store: ReadStore, scope: Scope, row: CommitRow) -> bool:
        return sees_log(scope, row.logged.task.reference)


SYSTEM_VIEW = Commits()


def entries_of(store: ObjectStore, commits: list[Logged]) -> dict[int, tuple[LogEntry, ...]]:
    """Return the log entries of commits by the commit's id. Entries that are not archived are read in one batch."""
    ids = [logged.commit.entries for logged in commits if logged.commit.entries]
    found = store.get_many(ids, Entries)
    return {
        logged.id: found[logged.commit.entries].entries if logged.commit.entries else logged.archived
        for logged in commits
    }
