"""Renderer of table and view metadata as JSON. It concatenates the texts of the stored pieces.

Iceberg's `TableMetadataParser` and `ViewMetadataParser` can read the result. The result contains every field that was
stored, including fields unknown to this release.
"""

from __future__ import annotations

from typing import Literal

from polaris_spark.catalog.metadata import logs
from polaris_spark.catalog.metadata.overflow import rendered_properties, rendered_refs
from polaris_spark.catalog.metadata.pieces import placed
from polaris_spark.catalog.metadata.rows import (
    Numbered,
    ObjectReader,
    PartitionSpec,
    PartitionStatistics,
    Piece,
    Schema,
    Snapshot,
    SortOrder,
    Statistics,
    Table,
    View,
    ViewVersion,
)
from polaris_spark.catalog.metadata.texts import decode, encode
from polaris_spark.errors import CorruptionError
from polaris_spark.index import Index, IndexRoot


def render(table: Table, reader: ObjectReader, *, snapshots: Literal["all", "refs"]) -> bytes:
    """Return the metadata of a table as JSON.

    Args:
        snapshots: `all` to include all snapshots, `refs` to include only the snapshots that branches and tags
            reference. Statistics are always complete, because engines use them to decide which files are orphans.
    """
    reader.prefetch(_pieces(table))
    refs = rendered_refs(table, reader)
    return b"".join(
        (
            *_head(table, reader),
            b',"refs":{',
            *_commas(refs.members),
            b"}",
            b',"snapshots":[',
            _all_of(table.snapshots, Snapshot, reader)
            if snapshots == "all"
            else _texts([pointer for _, pointer in sorted(refs.snapshots)], Snapshot, reader),
            b'],"statistics":[',
            _all_of(table.statistics, Statistics, reader),
            b'],"partition-statistics":[',
            _all_of(table.partition_statistics, PartitionStatistics, reader),
            b'],"snapshot-log":[',
            *_commas(logs.texts(table.snapshot_log, reader)),
            b'],"metadata-log":[',
            *_commas(logs.texts(table.metadata_log, reader)),
            b"]",
            table.extra,
            b"}",
        )
    )


def render_view(view: View, reader: ObjectReader) -> bytes:
    """Return the metadata of a view as JSON."""
    return b"".join(
        (
            b'{"view-uuid":%b,"format-version":%d' % (encode(view.uuid), view.format_version),
            b',"location":' + encode(view.location),
            b',"properties":' + encode(view.properties) if view.properties else b"",
            b',"schemas":[',
            _numbered(view.schemas, Schema, reader),
            b'],"current-version-id":%d,"versions":[' % view.current_version_id,
            _numbered(view.versions, ViewVersion, reader),
            b'],"version-log":[',
            logs.text(view.version_log, reader),
            b"]",
            view.extra,
            b"}",
        )
    )


def _pieces(table: Table) -> list[int]:
    """Return the ids of the objects to which the row points directly: schemas, specs, sort orders, snapshots, and parts
    of logs."""
    numbered = (*table.schemas, *table.specs, *table.sort_orders)
    segments = (*table.snapshot_log.segments, *table.metadata_log.segments)
    pieces = [piece.piece for piece in numbered] + [segment.piece for segment in segments]
    return pieces + [ref.snapshot for ref in table.refs]


def _head(table: Table, reader: ObjectReader) -> list[bytes]:
    version = table.format_version
    parts = [
        b'{"format-version":%d' % version,
        b',"table-uuid":' + encode(table.uuid) if table.uuid else b"",
        b',"location":' + encode(table.location) if table.location else b"",
        b',"last-sequence-number":%d' % table.last_sequence_number if version > 1 else b"",
        b',"last-updated-ms":%d,"last-column-id":%d' % (table.last_updated_ms, table.last_column_id),
        _schemas(table, reader),
        _specs(table, reader),
        b',"last-partition-id":%d,"default-sort-order-id":%d,"sort-orders":['
        % (table.last_partition_id, table.default_sort_order_id),
        _numbered(table.sort_orders, SortOrder, reader),
        b'],"properties":',
        rendered_properties(table, reader),
        _current_snapshot(table),
        b',"next-row-id":%d' % table.next_row_id if version >= 3 else b"",
    ]
    if table.encryption_keys:
        parts += (b',"encryption-keys":[', b",".join([text for _, text in table.encryption_keys]), b"]")
    return parts


def _schemas(table: Table, reader: ObjectReader) -> bytes:
    schemas = _numbered(table.schemas, Schema, reader)
    current = b""
    if table.format_version == 1:
        current = b',"schema":' + _piece(table.schemas, table.current_schema_id, Schema, reader)
    return b'%b,"current-schema-id":%d,"schemas":[%b]' % (current, table.current_schema_id, schemas)


def _specs(table: Table, reader: ObjectReader) -> bytes:
    specs = _numbered(table.specs, PartitionSpec, reader)
    default = b""
    if table.format_version == 1:
        spec = decode(_piece(table.specs, table.default_spec_id, PartitionSpec, reader))
        default = b',"partition-spec":' + encode(spec["fields"])
    return b'%b,"default-spec-id":%d,"partition-specs":[%b]' % (default, table.default_spec_id, specs)


def _current_snapshot(table: Table) -> bytes:
    if table.current_snapshot_id is not None:
        return b',"current-snapshot-id":%d' % table.current_snapshot_id
    return b',"current-snapshot-id":null' if table.format_version >= 3 else b',"current-snapshot-id":-1'


def _all_of(root: IndexRoot, cls: type[Piece], reader: ObjectReader) -> bytes:
    if not root.shard and not root.keys:
        return b""
    places = sorted((order, pointer) for _, pointer, order in placed(Index(root, reader.read_shards)))
    return _texts([pointer for _, pointer in places], cls, reader)


def _numbered(pieces: tuple[Numbered, ...], cls: type[Piece], reader: ObjectReader) -> bytes:
    return _texts([numbered.piece for numbered in pieces], cls, reader)


def _piece(pieces: tuple[Numbered, ...], id: int, cls: type[Piece], reader: ObjectReader) -> bytes:
    for numbered in pieces:
        if numbered.id == id:
            return reader.get(numbered.piece, cls).text
    raise CorruptionError(
        f"the current {cls.__name__} of the table has the id {id}, but there is no {cls.__name__} with this id"
    )


def _texts(ids: list[int], cls: type[Piece], reader: ObjectReader) -> bytes:
    if len(ids) == 1:
        return reader.get(ids[0], cls).text
    if not ids:
        return b""
    found = reader.get_many(ids, cls)
    return b",".join([found[id].text for id in ids])


def _commas(texts: list[bytes]) -> list[bytes]:
    """Return the texts with a comma after each text except the last.

    They are not joined here, because the caller joins all parts of the metadata in one step.
    """
    parts = [b","] * (2 * len(texts) - 1)
    parts[::2] = texts
    return parts
