"""Metadata files read into rows: what registration, import and first use have in common."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import NamedTuple

from polaris_spark.catalog.files import Files
from polaris_spark.catalog.metadata import TableDraft, ViewDraft, is_compressed, parse_table, parse_view
from polaris_spark.catalog.metadata.parse import read_fields
from polaris_spark.catalog.metadata.rows import NewId, NewRows, Table, View
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.errors import BadRequestError

MAX_METADATA_BYTES = 512 * 2**20
"""The longest metadata file, and the longest text of a compressed one: clients over HTTP name files to be read."""

_CHUNK_BYTES = 2**20
_GZIP_MAGIC = b"\x1f\x8b"


class Rows(NamedTuple):
    """A metadata file as rows: the table or view, and the pieces and shards that it points to, not yet written."""

    value: Table | View
    pieces: NewRows

    @property
    def kind(self) -> bytes:
        """Whether it is a table or a view."""
        return TABLE if isinstance(self.value, Table) else VIEW


def read_text(files: Files, location: str) -> bytes:
    """The JSON of a metadata file; one whose name or first bytes say so is decompressed.

    Raises:
        BadRequestError: it cannot be read, or is too long.
    """
    text = files.read(location, limit=MAX_METADATA_BYTES)
    if not is_compressed(location) and not text.startswith(_GZIP_MAGIC):
        return text
    try:
        return _decompressed(text)
    except (OSError, EOFError, zlib.error) as error:
        raise BadRequestError(f"{location!r} is not a gzip file: {error}") from error
    except ValueError as error:
        raise BadRequestError(f"cannot read {location!r}: {error}") from error


def _decompressed(text: bytes) -> bytes:
    plain = bytearray()
    with gzip.GzipFile(fileobj=io.BytesIO(text)) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            plain += chunk
            if len(plain) > MAX_METADATA_BYTES:
                raise ValueError(f"it has more than {MAX_METADATA_BYTES} bytes when decompressed")
    return bytes(plain)


def read_rows(
    files: Files, location: str, kind: bytes | None, new_id: NewId, *, entity_id: int, now_ms: int
) -> Rows:
    """A metadata file as rows, the whole of it.

    Args:
        kind: `TABLE` or `VIEW`; None where the file itself is to say it.
        new_id: issues the ids of pieces and shards.
        entity_id: of the table or view.
        now_ms: milliseconds since 1970.
    Raises:
        BadRequestError: it cannot be read, or is no valid metadata of that kind; the message names the file.
    """
    text = read_text(files, location)
    try:
        draft = _parse(text, kind, now_ms)
        value, pieces = draft.freeze(new_id, entity_id=entity_id, metadata_location=location)
    except BadRequestError as error:
        raise BadRequestError(f"metadata file {location!r}: {error}", type=error.type) from error
    except RecursionError as error:
        raise BadRequestError(f"metadata file {location!r}: it is nested too deeply") from error
    return Rows(value, pieces)


def _parse(text: bytes, kind: bytes | None, now_ms: int) -> TableDraft | ViewDraft:
    is_view = "view-uuid" in read_fields(text)
    if kind is not None and is_view != (kind == VIEW):
        raise BadRequestError(f"it describes a {'view' if is_view else 'table'}")
    return parse_view(text, now_ms=now_ms) if is_view else parse_table(text, now_ms=now_ms)
