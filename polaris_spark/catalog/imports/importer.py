"""Runs an import: lists the tables of a source, writes their rows in parallel, and adds many of them in one commit.

| step | what a crash right after the step leaves behind |
| --- | --- |
| 1. list some names of the source, compare them with the catalog | nothing |
| 2. read their metadata files and write rows, in parallel | unreachable rows, which a sweep deletes later |
| 3. add many of them to the catalog in one commit | imported tables and views, which the next run skips |

These steps repeat until the source has no more names. An interrupted import is simply run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import count, islice
from typing import NamedTuple

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.engine import Engine
from polaris_spark.catalog.entities.entities import NamespaceName, TableName, check_name, table_key
from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.catalog.imports.metadata_rows import FileToRead, Portion, ReadResult, WritePortion
from polaris_spark.catalog.imports.placement import (
    CONFLICT,
    EXISTS,
    FAILED,
    STALE,
    ImportOutcome,
    PlaceImported,
    Placement,
    PlaceNamespaces,
)
from polaris_spark.catalog.imports.sources import ListedNamespace, Source, SourceEntry
from polaris_spark.catalog.metadata.rows import Table, View
from polaris_spark.catalog.rows import NAMES, TABLE, VIEW, Unloaded, id_from
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import State
from polaris_spark.errors import CorruptionError, InputError, PolarisError, SourceError
from polaris_spark.ids import MAX_ID

WAVE = 4_000
"""Number of entries of the source that are listed and imported before more are listed. It is also the maximum number of
namespaces that one commit creates."""

IDS_EACH = 128
"""Number of object ids that are reserved for each of the first tables. For each later table, twice the average number
of ids that were used so far is reserved."""

KINDS = {TABLE: "table", VIEW: "view"}


class ImportOptions(NamedTuple):
    """Options of an import."""

    into: NamespaceName = ()
    """Namespace of this catalog below which all tables and views are imported."""
    namespaces: Sequence[str] = ()
    """Namespaces of the source to import, with all namespaces below them. Their levels are joined by dots. Empty means
    all."""
    include: Sequence[str] = ()
    """Patterns of full names of tables and views to import, such as `sales.*_2024`. Empty means all."""
    lazy: bool = False
    """Whether to store only the locations of metadata files. The metadata is then loaded at the first use of a
    table."""
    overwrite: bool = False
    """Whether to replace an existing table or view of the same name that has another metadata file. If False, a
    conflict is reported."""
    dry_run: bool = False
    """Whether to report only what the import would do, without changing anything."""
    parallelism: int = 8
    """Number of groups into which the metadata files are divided; each group is read by one task."""
    commit_size: int = 1_000
    """Maximum number of tables and views that one commit adds."""
    only_present: bool = False
    """Whether to import only tables and views whose names already exist in the catalog. Others are reported as
    conflicts."""


class Row(NamedTuple):
    """Result of the import of a table, view or namespace. In a row about the whole source, only status and message are
    set."""

    table: str | None
    """Name of the table, view or namespace."""
    kind: str | None
    metadata_location: str | None
    status: str
    message: str | None = None


class _Item(NamedTuple):
    """A table or view that is to be imported."""

    position: int
    name: TableName
    kind: bytes | None
    location: str
    entity_id: int
    replaces: int


class Importer:
    """One import into one branch of a catalog. Used once, by one thread."""

    def __init__(
        self,
        catalog: Catalog,
        operation: Operation,
        engine: Engine,
        options: ImportOptions,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            engine: reads files and writes rows.
            check: called between steps; raises an error to stop the import.
        Raises:
            InputError: an option cannot be used.
        """
        for name, number in (("parallelism", options.parallelism), ("commit_size", options.commit_size)):
            if number < 1:
                raise InputError(f"{name} is {number}; it must be at least 1")
        self._catalog = catalog
        self._operation = operation
        self._engine = engine
        # Executors work on one portion per core, however many portions there are.
        here = options.lazy or engine.parts == 1
        self._write = WritePortion(options.parallelism if here else 1)
        self._options = options
        self._check = check
        self._ids_each = IDS_EACH
        self._namespaces_left: dict[NamespaceName, dict[str, str]] = {}
        """Properties of listed namespaces in which no table or view that matches `include` was listed yet, by the name
        of the namespace. Empty if `include` is empty."""
        self._unplaced: dict[NamespaceName, dict[str, str]] = {}
        """Properties of listed namespaces that are not created yet, by the name of the namespace. They are created as
        soon as a table or view is imported, or at the end of the import if no table or view was refused."""
        self._placed_any = self._refused_any = False
        self._scratch: State | None = None
        """The state that a dry run changes, in memory only."""

    def rows(self, source: Source) -> Iterator[Row]:
        """Import a source. Yield a `Row` for each table and view of the source that the options select, and for each
        problem with a namespace or with the whole source.

        Raises:
            InputError: listing the source failed at the first entry.
            PolarisError: the catalog cannot be changed. Tables and views that were already imported stay, and the next
                run skips them.
        """
        listing = _Listing(source)
        while wave := list(islice(listing, WAVE)):
            self._check()
            wanted = [entry for entry in wave if isinstance(entry, SourceEntry) and self._wants(entry)]
            self._unplaced |= self._namespaces(wave)
            yield from self._wave(wanted)
        if not self._refused_any:
            yield from self._place_namespaces()
        if listing.error is not None:
            if not listing.listed:
                raise InputError(f"nothing was imported: {listing.error}")
            message = f"listing the source failed after {listing.listed} entries: {listing.error}"
            yield Row(None, None, None, FAILED, message)

    def _wants(self, entry: SourceEntry) -> bool:
        full = ".".join((*entry.namespace, entry.name))
        return self._wants_namespace(entry.namespace) and (
            not self._options.include or any(fnmatchcase(full, pattern) for pattern in self._options.include)
        )

    def _wants_namespace(self, name: NamespaceName) -> bool:
        wanted, full = self._options.namespaces, ".".join(name)
        return not wanted or any(full == one or full.startswith(f"{one}.") for one in wanted)

    def _namespaces(
        self, wave: Sequence[SourceEntry | ListedNamespace]
    ) -> dict[NamespaceName, dict[str, str]]:
        """Return the properties of the listed namespaces to create, by the name of the namespace in this catalog. If
        `include` has patterns, only namespaces that contain a matching table or view are returned."""
        found = {
            (*self._options.into, *one.name): dict(one.properties)
            for one in wave
            if isinstance(one, ListedNamespace) and self._wants_namespace(one.name)
        }
        if not self._options.include:
            return found
        self._namespaces_left |= found
        mine = {
            (*self._options.into, *e.namespace) for e in wave if isinstance(e, SourceEntry) and self._wants(e)
        }
        needed = {one[:levels] for one in mine for levels in range(1, len(one) + 1)}
        return {
            name: self._namespaces_left.pop(name) for name in sorted(needed & self._namespaces_left.keys())
        }

    # One wave

    def _wave(self, wave: Sequence[SourceEntry]) -> Iterator[Row]:
        outcomes: dict[int, ImportOutcome] = {}
        kinds = {position: entry.kind for position, entry in enumerate(wave)}
        items = self._plan(wave, outcomes)
        for _ in range(3):  # again for items whose rows a new sweep may delete
            placements = self._placements(items, outcomes, kinds)
            self._place(placements, outcomes)
            items = [item for item in items if outcomes[item.position].status == STALE]
            if not items:
                break
        for item in items:
            outcomes[item.position] = ImportOutcome(
                FAILED, "each time its rows were written, a sweep made them invalid; import it again"
            )
        refused = [outcome.status in (FAILED, CONFLICT) for outcome in outcomes.values()]
        self._refused_any |= any(refused)
        self._placed_any |= not all(refused)
        if self._placed_any:
            yield from self._place_namespaces()
        for position, entry in enumerate(wave):
            outcome = outcomes[position]
            kind = KINDS.get(kinds[position] or b"")
            table = dotted((*self._options.into, *entry.namespace, entry.name))
            message = outcome.message or None
            yield Row(table, kind, entry.metadata_location, outcome.status, message)

    def _place_namespaces(self) -> Iterator[Row]:
        """Create the listed namespaces. Yield a `Row` for each namespace that cannot be created."""
        waiting, self._unplaced = iter(self._unplaced.items()), {}
        while some := dict(islice(waiting, WAVE)):
            self._check()
            change = PlaceNamespaces(self._catalog.context, self._operation, some)
            for name, outcome in zip(some, self._commit(change), strict=True):
                if outcome.status == FAILED:
                    yield Row(dotted(name), "namespace", None, FAILED, outcome.message)

    def _plan(self, wave: Sequence[SourceEntry], outcomes: dict[int, ImportOutcome]) -> list[_Item]:
        """Return the items to import. Entries that are not imported get an outcome in `outcomes`."""
        planned = [self._target(position, entry, outcomes) for position, entry in enumerate(wave)]
        items = [item for item in planned if item is not None]
        fresh = (
            self._catalog.references.ids.next_ids(len(items))
            if not self._options.dry_run
            else [0] * len(items)
        )
        found = self._present(items)
        chosen = []
        for item, present, entity_id in zip(items, found, fresh, strict=True):
            if present is None and self._options.only_present:
                outcomes[item.position] = ImportOutcome(
                    CONFLICT, "it was renamed or dropped during the import"
                )
                continue
            if present is None:
                chosen.append(item._replace(entity_id=entity_id))
                continue
            entity, content_id, kind, content = present
            outcome = self._judge(item, kind, content)
            if outcome is not None:
                outcomes[item.position] = outcome
            else:
                chosen.append(item._replace(entity_id=entity, replaces=content_id, kind=kind))
        return chosen

    def _target(self, position: int, entry: SourceEntry, outcomes: dict[int, ImportOutcome]) -> _Item | None:
        name = TableName((*self._options.into, *entry.namespace), entry.name)
        problem = entry.problem
        try:
            check_name((*name.namespace, name.name))
            table_key(name)
        except PolarisError as error:
            problem = str(error)
        if problem:
            outcomes[position] = ImportOutcome(FAILED, problem)
            return None
        return _Item(position, name, entry.kind, entry.metadata_location, 0, 0)

    def _present(
        self, items: Sequence[_Item]
    ) -> list[tuple[int, int, bytes, Table | View | Unloaded] | None]:
        """Return, for each item, the existing table or view that has its name: entity id, object id of the content,
        kind and content. Return None for an item if there is none."""
        head = self._catalog.head()
        keys = [table_key(item.name, kind) for item in items for kind in KINDS]
        entries = head.index(NAMES).get_many(keys)
        contents = head.store.read({entry.pointer for entry in entries if entry is not None})
        found: list[tuple[int, int, bytes, Table | View | Unloaded] | None] = []
        for number in range(len(items)):
            both = zip(KINDS, entries[number * len(KINDS) : (number + 1) * len(KINDS)], strict=True)
            kind, entry = next(((kind, entry) for kind, entry in both if entry is not None), (b"", None))
            if entry is None:
                found.append(None)
                continue
            value = contents[entry.pointer].value
            if not isinstance(value, (Table, View, Unloaded)):
                raise CorruptionError(f"object {head.store.key(entry.pointer)} is neither a table nor a view")
            found.append((id_from(entry.value), entry.pointer, kind, value))
        return found

    def _judge(self, item: _Item, kind: bytes, content: Table | View | Unloaded) -> ImportOutcome | None:
        """Return the outcome for an item whose name already exists in the catalog; None if the import must replace the
        existing table or view, or load its metadata."""
        if item.kind not in (None, kind):
            return ImportOutcome(CONFLICT, f"a {KINDS[kind]} has this name")
        if content.metadata_location == item.location:
            to_load = isinstance(content, Unloaded) and not self._options.lazy
            return None if to_load else ImportOutcome(EXISTS)
        if self._options.overwrite:
            return None
        return ImportOutcome(
            CONFLICT, f"this name already has another metadata file: {content.metadata_location}"
        )

    def _placements(
        self, items: Sequence[_Item], outcomes: dict[int, ImportOutcome], kinds: dict[int, bytes | None]
    ) -> dict[int, Placement]:
        """Return the table or view to add to the catalog for each item, by the item's position. Items that cannot be
        read get an outcome in `outcomes` instead."""
        if self._options.lazy:
            for item in items:
                kinds[item.position] = item.kind or TABLE
            return {
                i.position: Placement(i.name, i.kind or TABLE, i.location, i.entity_id, i.replaces)
                for i in items
            }
        by_position = {item.position: item for item in items}
        placements = {}
        for result in self._read(items):
            item = by_position[result.position]
            if result.error:
                outcomes[item.position] = ImportOutcome(FAILED, result.error)
                continue
            kinds[item.position] = result.kind
            placements[item.position] = Placement(
                item.name,
                result.kind,
                item.location,
                item.entity_id,
                item.replaces,
                result.content,
                result.first_id,
                result.held,
            )
        return dict(sorted(placements.items()))

    def _read(self, items: Sequence[_Item]) -> list[ReadResult]:
        """Let the engine read the metadata files of items and write their rows, and return the results. Items for which
        too few object ids were reserved are read again with more ids."""
        now = self._catalog.context.clock.now_ms()
        results: list[ReadResult] = []
        needs = {item.position: self._ids_each for item in items}
        rest = list(items)
        while rest:
            self._check()
            written = self._engine.map(self._write, self._portions(rest, needs, now))
            done = [result for portion in written for result in portion]
            results += [result for result in done if not result.unfinished]
            needs = {result.position: result.ids for result in done if result.unfinished}
            rest = [item for item in rest if item.position in needs]
        used = [result.ids for result in results if result.ids]
        if used:
            self._ids_each = max(16, 2 * sum(used) // len(used))
        return results

    def _portions(self, items: Sequence[_Item], needs: dict[int, int], now: int) -> list[Portion]:
        n = min(len(items), self._options.parallelism)
        portions = []
        for number in range(n):
            mine = items[number::n]
            wanted = [FileToRead(item.position, item.kind, item.location, item.entity_id) for item in mine]
            enough = sum(needs[item.position] for item in mine)
            if self._options.dry_run:
                portions.append(Portion(wanted, [range(MAX_ID - (1 << 40), MAX_ID)], now, write=False))
            else:
                blocks = self._catalog.references.ids.next_blocks(enough)
                portions.append(Portion(wanted, blocks, now))
        return portions

    def _place(self, placements: dict[int, Placement], outcomes: dict[int, ImportOutcome]) -> None:
        waiting = iter(placements.items())
        while some := list(islice(waiting, self._options.commit_size)):
            self._check()
            placed = [placement for _, placement in some]
            change = PlaceImported(self._catalog.context, self._operation, placed, self._unplaced)
            outcomes.update(zip((position for position, _ in some), self._commit(change), strict=True))

    def _commit(self, change: PlaceImported | PlaceNamespaces) -> list[ImportOutcome]:
        if not self._options.dry_run:
            return self._catalog.commit(change)
        if self._scratch is None:
            head = self._catalog.head()
            self._scratch = State(head, count(head.head.commit + 1).__next__)
        outcomes = change.apply(self._scratch, change.prepare(self._scratch))
        return [_would(outcome) for outcome in outcomes]


def _would(outcome: ImportOutcome) -> ImportOutcome:
    """Return the outcome that a dry run reports if the import would have the given outcome. For example, `created`
    becomes `would be created`."""
    done = outcome.status not in (FAILED, CONFLICT, EXISTS)
    return ImportOutcome(f"would be {outcome.status}", outcome.message) if done else outcome


class _Listing:
    """Iterator over the entries of a source. It ends at the first error, which it keeps in `error`."""

    def __init__(self, source: Source) -> None:
        self._entries = source.entries()
        self.listed = 0
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[SourceEntry | ListedNamespace]:
        return self

    def __next__(self) -> SourceEntry | ListedNamespace:
        if self.error is not None:
            raise StopIteration
        try:
            entry = next(self._entries)
        except StopIteration:
            raise
        except Exception as error:  # libraries raise many types; entries listed before are imported
            self.error = (
                error if isinstance(error, SourceError) else SourceError(f"{type(error).__name__}: {error}")
            )
            raise StopIteration from error
        self.listed += 1
        return entry


def summary(rows: Iterable[Row]) -> str:
    """Return the number of rows of each status, as text."""
    counted = Counter(row.status for row in rows)
    return ", ".join(f"{number} {status}" for status, number in sorted(counted.items())) or "nothing"
