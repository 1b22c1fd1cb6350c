"""Messages of Bigtable's API: mutations, conditions, reads, and rows put together from the pieces of an answer.

Every cell is written with one and the same timestamp, so that writing it again replaces it, and a repeated write is the
same write. (Without one, the server's clock would make each a new version.) Reads and conditions look at the latest
cell of a column only: what garbage collection has not removed yet must not satisfy a condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from google.cloud.bigtable_v2 import types

FAMILY: Final = "f"
VALUE: Final = b"value"
VERSION: Final = b"version"
TIMESTAMP: Final = 1_000
"""Of all cells, in microseconds; tables have a granularity of a millisecond."""

Cells = dict[bytes, bytes]
"""Column to value, the latest of each."""
Part = Mapping[str, Any]
"""A message within another, by its fields: the library builds these faster than objects of their own."""

DELETE_ROW: Final[Sequence[Part]] = [{"delete_from_row": {}}]

_Condition: Final[Any] = types.CheckAndMutateRowRequest.pb()
_Read: Final[Any] = types.ReadRowsRequest.pb()
_Mutate: Final[Any] = types.MutateRowsRequest.pb()
_Sample: Final[Any] = types.SampleRowKeysRequest.pb()

_LATEST: Final[Part] = {"cells_per_column_limit_filter": 1}


class Table:
    """A table of one store, as one app profile sees it."""

    def __init__(self, name: str, app_profile: str) -> None:
        """
        Args:
            name: `projects/.../instances/.../tables/...`.
        """
        self._table = {"table_name": name, "app_profile_id": app_profile}

    def change_if(self, key: bytes, version: bytes, mutations: Sequence[Part]) -> Any:
        """Change a row if the latest cell of its version holds just these bytes (which must be some).

        A range of one value compares bytes; a filter by value would be a regular expression.
        """
        exactly = {"value_range_filter": {"start_value_closed": version, "end_value_closed": version}}
        return _Condition(
            **self._table,
            row_key=key,
            predicate_filter={"chain": {"filters": [_column(VERSION), _LATEST, exactly]}},
            true_mutations=mutations,
        )

    def insert(self, key: bytes, column: bytes, mutations: Sequence[Part]) -> Any:
        """Change a row that has no cell in a column; the condition is that it has one."""
        return _Condition(
            **self._table, row_key=key, predicate_filter=_column(column), false_mutations=mutations
        )

    def mutate(self, entries: Sequence[Part]) -> Any:
        """Change several rows, each by itself: `{"row_key": ..., "mutations": ...}`."""
        return _Mutate(**self._table, entries=entries)

    def read(self, keys: Sequence[bytes]) -> Any:
        """Rows by their keys."""
        return _Read(**self._table, rows={"row_keys": keys}, filter=_LATEST)

    def read_range(self, start: bytes, end: bytes, *, most: int = 0) -> Any:
        """Rows from one key to before another; 0 for all of them."""
        asked = {"start_key_closed": start, "end_key_open": end}
        return _Read(**self._table, rows={"row_ranges": [asked]}, filter=_LATEST, rows_limit=most)

    def sample(self) -> Any:
        """Keys that cut the table into parts of about the same size."""
        return _Sample(**self._table)


def set_cells(cells: Mapping[bytes, bytes]) -> list[Part]:
    """Mutations that set columns of a row."""
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
    """Whole rows of the answers to a ReadRows.

    A row comes in chunks: a key and a column stand in a chunk only where they change, a value may be cut (`value_size`
    is set on all of its pieces but the last), and a row may begin anew
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
