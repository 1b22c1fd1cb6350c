"""The system view `changes`: one row for each entry of the commit log. It serves as audit trail and as change feed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.access import securables
from polaris_spark.access.scopes import SHOWS_CHANGES, Scope, Sight, privilege_for, sees_change
from polaris_spark.catalog.catalogs.references import CATALOGS, catalog_in
from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.catalog.rows import CATALOG, NAMESPACE, TABLE, VIEW
from polaris_spark.commits.rows import Head, LogEntry
from polaris_spark.index.keys import DecodedKey, decode_key
from polaris_spark.spark.realm_reader import ReadStore
from polaris_spark.spark.views.columns import (
    BOOLEAN,
    INT,
    LONG,
    LONGS,
    STRING,
    STRING_MAP,
    TIMESTAMP,
    ViewColumn,
    micros,
    pairs,
    text_bytes,
)
from polaris_spark.spark.views.commits import entries_of
from polaris_spark.spark.views.history import HistoryView, Logged, sees_log
from polaris_spark.spark.views.pins import sight_of
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.recovery.execution import ACTION as RECOVER
from polaris_spark.system.registrations import name_parts
from polaris_spark.system.registry import ROOT

KINDS = {NAMESPACE: "namespace", TABLE: "table", VIEW: "view", CATALOG: "catalog"}
"""Names of the entity kinds, by the byte that stands for the kind in index keys. An unknown kind is shown as its
byte."""


def _branch(reference: str) -> str | None:
    parts = name_parts(reference)
    return None if parts is None or parts.is_tag else parts.name


class ChangeRow(NamedTuple):
    """A log entry of a commit. `key` is the decoded key of the changed entity. `old_key` is its decoded key before a
    rename; None for other changes."""

    logged: Logged
    position: int
    entry: LogEntry
    key: DecodedKey
    old_key: DecodedKey | None


class Changes(HistoryView[ChangeRow]):
    """A system view with one row for each entry of the commit log."""

    shown = SHOWS_CHANGES
    comment = "Who changed what: one row per entry of the log"
    columns = (
        ViewColumn(
            "catalog",
            STRING,
            "Catalog that was changed; null for changes of the realm itself",
            lambda row: row.logged.task.catalog,
        ),
        ViewColumn("reference", STRING, "Reference that was changed", lambda row: row.logged.task.reference),
        ViewColumn(
            "branch",
            STRING,
            "Branch of the catalog that was changed; null for other references",
            lambda row: _branch(row.logged.task.reference),
        ),
        ViewColumn("commit_id", LONG, "Commit that contains the change", lambda row: row.logged.id),
        ViewColumn(
            "number",
            LONG,
            "Number of the commit in its history",
            lambda row: row.logged.commit.number,
        ),
        ViewColumn(
            "merged_ids",
            LONGS,
            "Commits of other branches whose content the commit merged",
            lambda row: row.logged.commit.merged,
        ),
        ViewColumn(
            "state_stored",
            BOOLEAN,
            "Whether the commit is stored, so that its state can be read; false if only its log is kept",
            lambda row: row.logged.is_stored,
        ),
        ViewColumn("position", INT, "Position within the commit, beginning with 0", lambda row: row.position),
        ViewColumn(
            "committed_at", TIMESTAMP, "Time of the commit", lambda row: micros(row.logged.commit.time)
        ),
        ViewColumn(
            "changed_at",
            TIMESTAMP,
            "Time of the change itself, set before the change waited for its commit",
            lambda row: micros(row.entry.time),
        ),
        ViewColumn("principal", STRING, "Who made the change", lambda row: row.entry.principal),
        ViewColumn("action", STRING, "Action, such as update-table", lambda row: row.entry.action),
        ViewColumn("entity_id", LONG, "Stable id of the entity changed", lambda row: row.entry.entity),
        ViewColumn(
            "kind",
            STRING,
            "Kind of the entity: namespace, table, view, catalog or reference",
            lambda row: kind_name(row.key.kind),
        ),
        ViewColumn(
            "namespace",
            STRING,
            "Namespace of the entity (for a namespace: its parent), levels joined by dots",
            lambda row: dotted(row.key.path),
        ),
        ViewColumn(
            "name",
            STRING,
            "Name of the entity after the change, or before it if the change removed the entity",
            lambda row: row.key.name,
        ),
        ViewColumn(
            "old_namespace",
            STRING,
            "For a rename, the old namespace",
            lambda row: dotted(row.old_key.path) if row.old_key else None,
        ),
        ViewColumn(
            "old_name",
            STRING,
            "For a rename, the old name",
            lambda row: row.old_key.name if row.old_key else None,
        ),
        ViewColumn(
            "before_id",
            LONG,
            "Object with the content before the change; null if there was none",
            lambda row: row.entry.before or None,
        ),
        ViewColumn(
            "after_id",
            LONG,
            "Object with the content after the change; null if there is none",
            lambda row: row.entry.after or None,
        ),
        ViewColumn(
            "operation_id",
            STRING,
            "Operation id, a UUID, from the client or of a transaction; null if there was none",
            lambda row: operation_text(row.entry.operation),
        ),
        ViewColumn(
            "summary",
            STRING_MAP,
            "What changed, such as columns, properties, branches, tags, files and records, and the notes of the client",
            lambda row: pairs(row.entry.summary),
        ),
    )

    def weigh(self, row: ChangeRow) -> int:
        return 512 + text_bytes(row.entry.summary)

    def sees(self, store: ReadStore, scope: Scope, row: ChangeRow) -> bool:
        logged, entity = row.logged, row.entry.entity
        task = logged.task
        if sees_log(scope, task.reference):
            return True
        privilege = privilege_for(self.shown, row.key.kind)
        if privilege is None:
            return False
        if task.reference == CATALOGS:
            return scope.may(privilege, (securables.catalog(entity), securables.REALM))
        parts, catalog = name_parts(task.reference), catalog_in(task.reference)
        if parts is None or catalog is None:
            return False
        newest = task.newest or task.head
        branch = None if parts.is_tag or newest.sealed else parts.name  # no grants hold for a dropped branch
        now = sight_of(store, scope, task.realm, catalog, branch, newest, newest)

        def then() -> Sight | None:
            if not logged.is_stored:
                return None
            head = Head(logged.id, logged.commit.number, logged.commit.time)
            return sight_of(store, scope, task.realm, catalog, branch, head, newest)

        return sees_change(privilege, entity, row.key.path, now, then)

    def of(self, store: ObjectStore, commits: list[Logged], needs: frozenset[str]) -> Iterator[ChangeRow]:
        entries = entries_of(store, commits)
        for logged in commits:
            listed = entries[logged.id]
            for position in range(len(listed) - 1, -1, -1):
                entry = listed[position]
                registry = logged.task.reference == ROOT or entry.action == RECOVER
                old = decode_key(entry.old_key) if entry.old_key else None
                yield ChangeRow(logged, position, entry, _decoded(entry.key, registry=registry), old)


SYSTEM_VIEW = Changes()


def kind_name(kind: bytes) -> str:
    """Return the name of the entity kind that a byte in index keys stands for."""
    return KINDS.get(kind) or ("reference" if kind == _REFERENCE else kind.decode("latin-1"))


_REFERENCE = b""
"""Kind of the log entries whose keys are names of references, not index keys: entries of the registry and of
recoveries."""


def _decoded(key: bytes, *, registry: bool) -> DecodedKey:
    return DecodedKey((), _REFERENCE, key.decode()) if registry else decode_key(key)


def operation_text(operation: bytes) -> str | None:
    """Return an operation id as text: a UUID if the id has 16 bytes, otherwise hexadecimal digits; None if it is
    empty."""
    if not operation:
        return None
    return str(uuid.UUID(bytes=operation)) if len(operation) == 16 else operation.hex()
