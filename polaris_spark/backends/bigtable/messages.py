"""Messages of Bigtable's API: requests for mutations, conditional mutations and reads, and the rows in answers.

Every cell is written with the same constant timestamp, so that a second write replaces the cell, and writes are
idempotent. (Without a timestamp, the server's clock would make each write a new version.) Reads and conditions look
only at the latest cell of a column: a cell that garbage collection has not removed yet must not satisfy a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from google.cloud.bigtable_v2 import types

FAMILY: Final = "f"
VALUE: Final = b"value"
VERSION: Final = b"version"
TIMESTAMP: Final = 1_000
"""Timestamp of all cells, in microseconds. Tables have a granularity of milliseconds."""

Cells = dict[bytes, bytes]
"""The latest value of each column of a row, by column name."""
Part = Mapping[str, Any]
"""A part of a message, as a mapping of field names to values. The library builds messages from mappings faster than
from objects."""

DELETE_ROW: Final[Sequence[Part]] = [{"delete_from_row": {}}]

_Condition: Final[Any] = types.CheckAndMutateRowRequest.pb()
_Read: Final[Any] = types.ReadRowsRequest.pb()
_Mutate: Final[Any] = types.MutateRowsRequest.pb()
_Sample: Final[Any] = types.SampleRowKeysRequest.pb()

_LATEST: Final[Part] = {"cells_per_column_limit_filter": 1}


class BigtableTable:
    """Builds requests for one table of a store. The requests use one app profile."""

    def __init__(self, name: str, app_profile: str) -> None:
        """
        Args:
            name: full name of the table, `projects/.../instances/.../tables/...`.
        """
        self._table = {"table_name": name, "app_profile_id": app_profile}

    def change_if(self, key: bytes, version: bytes, mutations: Sequence[Part]) -> Any:
        """Return a request that changes a row if the latest cell in its column `version` is equal to `version`, which
        must not be empty.

        The filter is a range that contains only `version`, because a range compares bytes. A filter for a single value
        would interpret `version` as a regular expression.
        """
        exactly = {"value_range_filter": {"start_value_closed": version, "end_value_closed": version}}
        return _Condition(
            **self._table,
            row_key=key,
            predicate_filter={"chain": {"filters": [_column(VERSION), _LATEST, exactly]}},
            true_mutations=mutations,
        )

    def insert(self, key: bytes, column: bytes, mutations: Sequence[Part]) -> Any:
        """Return a request that changes a row only if it has no cell in a column. The answer's `predicate_matched` has
        the opposite meaning: it is true if the row has a cell in the column, and was not changed."""
        return _Condition(
            **self._table, row_key=key, predicate_filter=_column(column), false_mutations=mutations
        )

    def mutate(self, entries: Sequence[Part]) -> Any:
        """Return a request that changes several rows, each of them atomically. An entry is `{"row_key": ...,
        "mutations": ...}`."""
        return _Mutate(**self._table, entries=entries)

    def read(self, keys: Sequence[bytes]) -> Any:
        """Return a request that reads rows by their keys."""
        return _Read(**self._table, rows={"row_keys": keys}, filter=_LATEST)

    def read_range(self, start: bytes, end: bytes, *, most: int = 0) -> Any:
        """Return a request that reads at most `most` rows (0: all rows) with keys from `start`, inclusive, to `end`,
        exclusive."""
        asked = {"start_key_closed": start, "end_key_open": end}
        return _Read(**self._table, rows={"row_ranges": [asked]}, filter=_LATEST, rows_limit=most)

    def sample(self) -> Any:
        """Return a request for a sample of the table's keys that divides the table into parts of about equal size."""
        return _Sample(**self._table)


def set_cells(cells: Mapping[bytes, bytes]) -> list[Part]:
    """Return the mutations that set columns of a row. `cells` maps column names to values."""
    return [
        {
            "set_cell": {
                "family_name": FAMILY,
                "column_qualifier": column,
                "timestamp_micros": TIMESTAMP,
                "value": value,
            }
        }
        for column, value in cells.items()
    ]


def merged(answers: Iterable[Any]) -> Iterator[tuple[bytes, Cells]]:
    """Yield the key and the cells of each row from the answers to a ReadRows request.

    A row arrives in chunks. A chunk contains the key and the column only if they change; a value may be divided into
    several chunks (`value_size` is set on all but the last); and a row may be reset and start again
    (https://cloud.google.com/bigtable/docs/reference/data/rpc/google.bigtable.v2#cellchunk).
    """
    key, column = b"", b""
    cells: Cells = {}
    pieces: list[bytes] = []
    for answer in answers:
        for chunk in answer.chunks:
            if chunk.reset_row:
                cells, pieces = {}, []
                continue
            key = chunk.row_key or key
            if chunk.HasField("qualifier"):
                column = chunk.qualifier.value
            pieces.append(chunk.value)
            if not chunk.value_size:
                cells[column] = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                pieces = []
            if chunk.commit_row:
                yield key, cells
                cells = {}


def _column(column: bytes) -> Part:
    return {
        "column_range_filter": {
            "family_name": FAMILY,
            "start_qualifier_closed": column,
            "end_qualifier_closed": column,
        }
    }
