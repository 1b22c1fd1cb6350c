"""The system view `namespaces`: one row for each namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.entities.identifiers import dotted, parse_dotted
from polaris_spark.catalog.rows import NAMESPACE, Namespace
from polaris_spark.errors import InputError
from polaris_spark.index.keys import entry_key, key_after
from polaris_spark.spark.pruning import Condition
from polaris_spark.spark.views.columns import (
    INT,
    LONG,
    STRING,
    STRING_MAP,
    STRINGS,
    TIMESTAMP,
    ViewColumn,
    micros,
    pairs,
    text_bytes,
)
from polaris_spark.spark.views.entities import (
    EntityEntry,
    EntityView,
    NamesTask,
    Range,
    plan_names,
    with_contents,
)
from polaris_spark.spark.views.view import ScanRequest, Weighted
from polaris_spark.store.objects import ObjectStore


class NamespaceRow(NamedTuple):
    """A namespace with its entry in the index `names`."""

    entry: EntityEntry
    value: Namespace

    @property
    def levels(self) -> tuple[str, ...]:
        """The full name of the namespace, one string per level."""
        return (*self.entry.path, self.entry.name)


class Namespaces(EntityView[NamespaceRow]):
    """A system view with one row for each namespace."""

    comment = "Namespaces, one row each"
    shown = (Need("NAMESPACE_READ_PROPERTIES", On.NAMESPACE),)
    kind = NAMESPACE
    one_each = True
    columns = (
        ViewColumn("catalog", STRING, "Catalog that the namespace belongs to", lambda row: row.entry.catalog),
        ViewColumn(
            "namespace",
            STRING,
            "Whole name, levels joined by dots; a level that contains a dot or backquote is in backquotes",
            lambda row: dotted(row.levels),
        ),
        ViewColumn("levels", STRINGS, "Whole name, level by level", lambda row: row.levels),
        ViewColumn(
            "parent",
            STRING,
            "Parent namespace; null at the top",
            lambda row: dotted(row.entry.path) if row.entry.path else None,
        ),
        ViewColumn("name", STRING, "Last level of the name", lambda row: row.entry.name),
        ViewColumn("depth", INT, "Number of levels", lambda row: len(row.levels)),
        ViewColumn(
            "entity_id",
            LONG,
            "Stable id of the namespace, never reused",
            lambda row: row.entry.entity_id,
        ),
        ViewColumn(
            "content_id",
            LONG,
            "Id of the object with its current state; it changes with each change of the namespace",
            lambda row: row.entry.content_id,
        ),
        ViewColumn("created_at", TIMESTAMP, "Time of its creation", lambda row: micros(row.value.created)),
        ViewColumn(
            "owner",
            STRING,
            "Principal that created it; with access control, `show_owner` returns its owner",
            lambda row: row.value.owner,
        ),
        ViewColumn("properties", STRING_MAP, "Its properties", lambda row: pairs(row.value.properties)),
    )

    def plan(self, request: ScanRequest) -> list[Weighted[NamesTask]]:
        # The column `namespace` is the full name in this view, but keys begin with the parent.
        wanted = _keys(request.condition("namespace"))
        loose = {**request.conditions, "namespace": request.condition("parent")}
        by_parent = ScanRequest(request.options, request.store, loose)
        return plan_names(by_parent, self.kind, self.rows_per_partition, wanted)

    def of(
        self, store: ObjectStore, entries: Iterator[EntityEntry], needs: frozenset[str]
    ) -> Iterator[NamespaceRow]:
        for run in with_contents(store, entries, Namespace):
            for entry, value in run:
                yield NamespaceRow(entry, value)

    def weigh(self, row: NamespaceRow) -> int:
        return 512 + text_bytes(row.value.properties)


SYSTEM_VIEW = Namespaces()


def _keys(names: Condition) -> list[Range] | None:
    """Return one key range for each full name of a namespace that the condition lists; None if it lists no names."""
    if names.values is None:
        return None
    keys = []
    for text in names.values:
        levels = parse_dotted(text)
        with contextlib.suppress(InputError):  # the name is too long for a key, so no namespace has it
            keys += [entry_key(levels[:-1], NAMESPACE, levels[-1])] if levels else []
    return [(key, key_after(key)) for key in sorted(keys)]
