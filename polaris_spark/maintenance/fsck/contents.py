"""Check of tables and views: their rows, and the rows that hold their schemas, snapshots, logs and other pieces."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from polaris_spark.catalog.metadata.logs import SEPARATOR
from polaris_spark.catalog.metadata.overflow import MAIN_REF, PROPERTY_CODEC, REF_CODEC, Codec, key_of
from polaris_spark.catalog.metadata.pieces import placed
from polaris_spark.catalog.metadata.rows import (
    Log,
    LogItems,
    Numbered,
    Overflow,
    PartitionSpec,
    PartitionStatistics,
    Piece,
    Ref,
    Schema,
    Snapshot,
    SortOrder,
    Statistics,
    Table,
    View,
    ViewVersion,
)
from polaris_spark.errors import CorruptionError
from polaris_spark.index import ExpectedShard, Index, IndexRoot, check
from polaris_spark.maintenance.fsck.rows import Problem, RowReader

V = TypeVar("V")

WRONG_CONTENT = "wrong-content"

_decode = msgspec.json.Decoder().decode


class ContentCheck:
    """Check of versions of tables and views in the commits of one reference. Each version is checked once."""

    def __init__(self, rows: RowReader, reference: str) -> None:
        self._rows = rows
        self._reference = reference
        self._seen: set[int] = set()
        self._pieces: set[tuple[int, int, str]] = set()
        self._sound: set[ExpectedShard] = set()

    def check(self, ids: Iterable[int], path: str) -> Iterator[Problem]:
        """Yield the problems of those objects that are tables or views.

        Other objects are skipped, and so are objects that cannot be read, because other checks report them.

        Args:
            ids: ids of objects. Ids that were checked before are skipped.
            path: how the check reached these objects, for the reported problems.
        """
        new = [id for id in dict.fromkeys(ids) if id and id not in self._seen]
        self._seen.update(new)
        for id, found in self._rows.read(new).items():
            if isinstance(found.value, Table):
                faults: Iterable[tuple[int, str]] = self._table(found.value)
            elif isinstance(found.value, View):
                faults = self._view(found.value)
            else:
                continue
            for at, message in faults:
                yield self._rows.problem(
                    WRONG_CONTENT,
                    at or id,
                    message,
                    reference=self._reference,
                    path=f"{path}, {found.header.type} {id}",
                )

    def _table(self, table: Table) -> Iterator[tuple[int, str]]:
        """Yield a table's faults as pairs of the damaged object's id (0 for the table's own row) and a message."""
        for numbered, cls, field, current, what in (
            (table.schemas, Schema, "schema-id", table.current_schema_id, "schema"),
            (table.specs, PartitionSpec, "spec-id", table.default_spec_id, "partition spec"),
            (table.sort_orders, SortOrder, "order-id", table.default_sort_order_id, "sort order"),
        ):
            yield from self._numbered(numbered, cls, field, current, what)
        for root, piece_type, what in (
            (table.snapshots, Snapshot, "snapshot"),
            (table.statistics, Statistics, "statistics file"),
            (table.partition_statistics, PartitionStatistics, "partition statistics file"),
        ):
            yield from self._indexed(root, piece_type, table.next_order, what)
        refs = yield from self._overflow(table.more_refs, REF_CODEC, "refs")
        if refs is not None:
            yield from self._refs(table, (*table.refs, *refs))
        yield from self._overflow(table.more_properties, PROPERTY_CODEC, "properties")
        for log, what in ((table.snapshot_log, "snapshot log"), (table.metadata_log, "metadata log")):
            yield from self._log(log, what)

    def _view(self, view: View) -> Iterator[tuple[int, str]]:
        yield from self._numbered(view.schemas, Schema, "schema-id", None, "schema")
        current = view.current_version_id
        yield from self._numbered(view.versions, ViewVersion, "version-id", current, "version")
        yield from self._log(view.version_log, "version log")

    def _numbered(
        self,
        numbered: tuple[Numbered, ...],
        cls: type[Piece],
        field: str,
        current: int | None,
        what: str,
    ) -> Iterator[tuple[int, str]]:
        numbers = [one.id for one in numbered]
        if len(set(numbers)) < len(numbers):
            yield 0, f"it contains a {what} twice: {numbers}"
        if current is not None and current not in numbers:
            yield 0, f"its current {what} is {current}; it has only {numbers}"
        yield from self._texts([(one.piece, one.id) for one in numbered], cls, field, what)

    def _texts(
        self, pieces: Collection[tuple[int, int]], cls: type[Piece], field: str, what: str
    ) -> Iterator[tuple[int, str]]:
        """Yield a fault for each piece (such as a schema) that has the wrong type, or whose text does not contain its
        number.

        Args:
            pieces: pairs of a piece's object id and its number.
            cls: type that the objects must have.
            field: name of the JSON field that must contain the number.
            what: word for the piece in messages, such as `schema`.
        """
        new = [piece for piece in pieces if (*piece, what) not in self._pieces]
        self._pieces.update((*piece, what) for piece in new)
        found = self._rows.read([id for id, _ in new])
        for id, number in new:
            if id not in found:
                continue
            value = found[id].value
            if not isinstance(value, cls):
                yield (
                    0,
                    f"its {what} {number} is object {id}, which has the wrong type {found[id].header.type!r}",
                )
                continue
            said = _number(value.text, field)
            if said is None:
                yield id, f"its text is not a JSON object with a {field}: {bytes(value.text[:60])!r}"
            elif said != number:
                yield id, f"its text says {field} {said}, but the table or view lists it as {what} {number}"

    def _indexed(
        self, root: IndexRoot, cls: type[Piece], next_order: int, what: str
    ) -> Iterator[tuple[int, str]]:
        faults = list(check(root, self._rows.shards, self._sound))
        for fault in faults:
            yield fault.shard, f"index of {what}s: {fault.message}"
        if faults:
            return
        try:
            listed = list(placed(Index(root, self._rows.shards)))
        except CorruptionError:  # reported where the shards were first read
            return
        orders = [order for _, _, order in listed]
        if len(set(orders)) < len(orders):
            yield 0, f"two of its {what}s have the same position"
        if orders and max(orders) >= next_order:
            yield 0, f"a {what} has position {max(orders)}, but the next {what} would get {next_order}"
        yield from self._texts([(pointer, id) for id, pointer, _ in listed], cls, "snapshot-id", what)

    def _overflow(
        self, others: Overflow | None, codec: Codec[V], what: str
    ) -> Generator[tuple[int, str], None, list[V] | None]:
        """Yield the faults of the index that holds the refs or properties for which a table's row has no room.

        Returns:
            the values in the index; empty if there is no index; None if the index cannot be read.
        """
        if others is None:
            return []
        faults = list(check(others.index, self._rows.shards, self._sound))
        for fault in faults:
            yield fault.shard, f"index of {what}: {fault.message}"
        if faults:
            return None
        found, size = [], 0
        try:
            for key, entry in Index(others.index, self._rows.shards).range():
                name, value = codec.decode(*entry)
                found.append(value)
                size += codec.size(name, value)
                if key != key_of(name):
                    yield 0, f"its index of {what} holds {name!r} under the key of another name"
                if codec.stays(name):
                    yield 0, f"its index of {what} holds {name!r}, which belongs in the row"
        except CorruptionError as error:
            yield 0, f"index of {what}: {error}"
            return None
        if (len(found), size) != (others.count, others.size):
            yield (
                0,
                f"its index of {what} holds {len(found)} {what} with {size} bytes; its row says {others.count} with "
                f"{others.size} bytes",
            )
        return found

    def _refs(self, table: Table, refs: Collection[Ref]) -> Iterator[tuple[int, str]]:
        names = [ref.name for ref in refs]
        if len(set(names)) < len(names):
            yield 0, f"it has two branches or tags with the same name: {names}"
        try:
            known = {
                id: (pointer, order)
                for id, pointer, order in placed(Index(table.snapshots, self._rows.shards))
            }
        except CorruptionError:
            return
        for ref in refs:
            yield from [(0, f"{ref.name!r} {message}") for message in _ref_faults(ref, known)]
        current, main = table.current_snapshot_id, next((r for r in table.refs if r.name == MAIN_REF), None)
        if current is not None and current not in known:
            yield 0, f"its current snapshot {current} does not exist"
        if main is not None and main.snapshot_id != current:  # a registered table may lack main
            yield 0, f"branch main is at {main.snapshot_id}, its current snapshot is {current}"

    def _log(self, log: Log, what: str) -> Iterator[tuple[int, str]]:
        items = sum(segment.items for segment in log.segments)
        if log.skip < 0 or (log.skip and log.skip >= (log.segments[0].items if log.segments else 1)):
            yield (
                0,
                f"its {what} skips {log.skip} of {items} items; it may skip only a part of its first segment",
            )
        new = [s for s in log.segments if (s.piece, s.items, what) not in self._pieces]
        self._pieces.update((segment.piece, segment.items, what) for segment in new)
        found = self._rows.read([segment.piece for segment in new])
        for segment in new:
            if segment.piece not in found:
                continue
            value = found[segment.piece].value
            if not isinstance(value, LogItems):
                kind = found[segment.piece].header.type
                yield 0, f"a segment of its {what} is object {segment.piece}, of type {kind!r}"
            elif not _is_items(value.text, segment.items):
                yield segment.piece, f"its text does not have the {segment.items} items that the {what} says"


def _ref_faults(ref: Ref, known: dict[int, tuple[int, int]]) -> Iterator[str]:
    if ref.snapshot_id not in known:
        yield f"names snapshot {ref.snapshot_id}, which does not exist"
    elif known[ref.snapshot_id] != (ref.snapshot, ref.order):
        pointer, order = known[ref.snapshot_id]
        yield (
            f"says that snapshot {ref.snapshot_id} is object {ref.snapshot} at position {ref.order}; the index of "
            f"snapshots says object {pointer} at position {order}"
        )
    said = _number(ref.text, "snapshot-id")
    if said != ref.snapshot_id:
        yield f"says snapshot-id {said} in its text, {ref.snapshot_id} in its row"


def _number(text: bytes, field: str) -> int | None:
    value = _json(text)
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, int) else None


def _is_items(text: bytes, items: int) -> bool:
    listed = text.split(SEPARATOR)
    return len(listed) == items and all(isinstance(_json(item), dict) for item in listed)


def _json(text: bytes) -> Any:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
