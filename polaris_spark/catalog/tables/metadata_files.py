"""Reading of metadata files into rows, for registration, import and the first use of lazily imported tables."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from typing import BinaryIO, NamedTuple, cast

import msgspec

from polaris_spark.catalog.entities.materialized_views import METADATA, make_ordinary
from polaris_spark.catalog.files.files import Files
from polaris_spark.catalog.files.memory import charge, parsed_bytes
from polaris_spark.catalog.files.ownership import unconfirmed_of
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.metadata_paths import is_compressed
from polaris_spark.catalog.metadata.rows import NewId, NewRows, Table, View
from polaris_spark.catalog.metadata.table_parser import parse_table, read_fields
from polaris_spark.catalog.metadata.view_draft import ViewDraft
from polaris_spark.catalog.metadata.view_parser import parse_view
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.errors import BadRequestError, UnreadableFileError

MAX_METADATA_BYTES = 512 * 2**20
"""Maximum size of a metadata file, after decompression, in bytes. A limit is needed because clients choose the file."""

_PIECE_BYTES = 2**20
_GZIP_MAGIC = b"\x1f\x8b"


class MetadataRows(NamedTuple):
    """A metadata file as rows that are not written yet: the table or view, and the objects to which its row points,
    such as schemas, snapshots and index shards."""

    value: Table | View
    pieces: NewRows

    @property
    def kind(self) -> bytes:
        """`TABLE` or `VIEW`."""
        return TABLE if isinstance(self.value, Table) else VIEW


def read_text(files: Files, location: str) -> bytes:
    """Return the JSON of a metadata file, decompressed if the file's name or first bytes show that it is compressed.

    The memory for the text and an estimate for parsing it are added to the request's claim (`memory.charge`).

    Raises:
        BadRequestError: the file cannot be read, or is too long.
        RequestTooLargeError: the request needs more memory than the server's limit.
        TryAgainError: other requests use too much memory.
    """
    try:
        with files.stream(location) as file:
            text = _text(_Pieces(file), compressed=is_compressed(location))
    except UnreadableFileError as error:
        raise BadRequestError(str(error)) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadRequestError(f"{location!r} is not a complete gzip file: {error}") from None
    except (OSError, ValueError) as error:
        raise BadRequestError(f"cannot read {location!r}: {error}") from None
    charge(parsed_bytes(text))
    return text


class _Pieces:
    """A file that is read once from its beginning. Its first two bytes are available in `first` before it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._begun = file.read(len(_GZIP_MAGIC))
        self.first = self._begun

    def read(self, size: int) -> bytes:
        if self._begun:
            begun, self._begun = self._begun[:size], self._begun[size:]
            return begun
        return self._file.read(size)


def _text(pieces: _Pieces, *, compressed: bool) -> bytes:
    """Return the text of a file, decompressed if `compressed` is true or the file begins with gzip's first bytes.

    Raises:
        ValueError: the text is too long.
        OSError, EOFError, zlib.error: the file cannot be read, or cannot be decompressed.
    """
    compressed = compressed or pieces.first == _GZIP_MAGIC
    source = gzip.GzipFile(fileobj=cast("BinaryIO", pieces)) if compressed else pieces
    text = io.BytesIO()
    length = 0
    while piece := source.read(_PIECE_BYTES):
        length += len(piece)
        if length > MAX_METADATA_BYTES:
            raise ValueError(
                f"the file has more than {MAX_METADATA_BYTES} bytes{' when decompressed' if compressed else ''}"
            )
        charge(len(piece))
        text.write(piece)
    return text.getvalue()


def read_rows(
    files: Files,
    location: str,
    kind: bytes | None,
    new_id: NewId,
    *,
    entity_id: int,
    now_ms: int,
    allows_overflow: bool,
) -> MetadataRows:
    """Read a whole metadata file and return it as rows.

    Args:
        kind: `TABLE` or `VIEW`; None to take the kind from the file.
        new_id: returns new object ids for schemas, snapshots, index shards and so on.
        entity_id: entity id of the table or view.
        now_ms: current time, in milliseconds since 1970.
        allows_overflow: whether the realm allows tables that keep refs or properties in an index outside their row.
    Raises:
        BadRequestError: the file cannot be read, or is not valid metadata of that kind; the message names the file.
    """
    text = read_text(files, location)
    try:
        draft = _parse(text, kind, now_ms)
        if isinstance(draft, TableDraft) and not allows_overflow:
            draft.overflow_bound = math.inf
        if isinstance(draft, ViewDraft) and METADATA in draft.properties:  # its storage table is not imported
            make_ordinary(draft)
        value, pieces = draft.freeze(new_id, entity_id=entity_id, metadata_location=location)
        away = unconfirmed_of(value.location, value.properties, location)
        value = msgspec.structs.replace(value, unconfirmed=away)
    except BadRequestError as error:
        raise BadRequestError(f"metadata file {location!r}: {error}", type=error.type) from error
    except RecursionError as error:
        raise BadRequestError(f"metadata file {location!r}: the JSON is nested too deeply") from error
    return MetadataRows(value, pieces)


def _parse(text: bytes, kind: bytes | None, now_ms: int) -> TableDraft | ViewDraft:
    is_view = "view-uuid" in read_fields(text)
    if kind is not None and is_view != (kind == VIEW):
        found, wanted = ("view", "table") if is_view else ("table", "view")
        raise BadRequestError(f"the file describes a {found}, not a {wanted}")
    return parse_view(text, now_ms=now_ms) if is_view else parse_table(text, now_ms=now_ms)
