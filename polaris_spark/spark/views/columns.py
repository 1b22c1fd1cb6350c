"""Columns of views: name, type, documentation and value of each, and rows as Arrow batches of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from polaris_spark.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)

BATCH_ROWS = 1_024
"""Most rows of an Arrow batch."""

BATCH_BYTES = 4 * 2**20
"""An Arrow batch ends with the row that reaches this many bytes."""

BATCH_EQUAL_ROWS = 16_384
"""Most rows of an Arrow batch of equal ones."""

STRING, LONG, INT, BOOLEAN, BINARY = StringType(), LongType(), IntegerType(), BooleanType(), BinaryType()
TIMESTAMP = TimestampType()
"""Values are given as microseconds since 1970 UTC."""
STRINGS, LONGS = ArrayType(StringType(), containsNull=False), ArrayType(LongType(), containsNull=False)
STRING_MAP = MapType(StringType(), StringType(), valueContainsNull=False)
"""Values are given as by `pairs`."""


class Column(NamedTuple, Generic[R_contra]):
    """A column of a view whose rows are made of `R`."""

    name: str
    type: DataType
    comment: str
    value: Callable[[R_contra], Any]
    needs: str = "content"
    """What must be read for this column, in words of the view's own; empty if the index or the row's key says it."""

    def field(self) -> StructField:
        """The column as Spark describes it."""
        return StructField(self.name, self.type, nullable=True, metadata={"comment": self.comment})


def struct(columns: Iterable[Column[Any]]) -> StructType:
    """The columns as a schema."""
    return StructType([column.field() for column in columns])


def chosen(columns: Sequence[Column[R]], schema: StructType, view: str) -> tuple[Column[R], ...]:
    """The columns that a schema names, in its order.

    Raises:
        InputError: the view has no such column, or of another type.
    """
    by_name = {column.name: column for column in columns}
    found = []
    for field in schema.fields:
        column = by_name.get(field.name)
        if column is None:
            raise InputError(f"view {view!r} has no column {field.name!r}; it has: {', '.join(by_name)}")
        if column.type.simpleString() != field.dataType.simpleString():
            raise InputError(
                f"column {field.name!r} of view {view!r} is {column.type.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
        found.append(column)
    return tuple(found)


_FIRST_MS, _LAST_MS = -62_104_060_800_000, 253_370_764_800_000
"""Times that Python can tell, the years 2 to 9998: with room for time zones. Clients may send any of 64 bits."""


def micros(milliseconds: int | None) -> int | None:
    """A time in milliseconds since 1970 as a value of a TIMESTAMP column; null if nobody could collect the row."""
    if milliseconds is None or not _FIRST_MS <= milliseconds < _LAST_MS:
        return None
    return milliseconds * 1_000


def text_bytes(mapping: Mapping[str, str]) -> int:
    """About how many bytes a map column takes."""
    return 32 * len(mapping) + sum(map(len, mapping.values()))


def pairs(mapping: Mapping[str, Any] | None) -> list[tuple[str, Any]] | None:
    """A mapping as the value of a map column."""
    return None if mapping is None else list(mapping.items())


def batches(
    columns: Sequence[Column[R]], rows: Iterable[R], weigh: Callable[[R], int]
) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches of at most `BATCH_ROWS` rows and about `BATCH_BYTES` bytes.

    Args:
        weigh: about how many bytes a row takes.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(struct(columns))
    for chunk in _chunks(rows, weigh):
        arrays = [
            pa.array([column.value(row) for row in chunk], type=field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def equal_rows(columns: Sequence[Column[Any]], values: Sequence[Any], n: int) -> Iterator[pa.RecordBatch]:
    """`n` times the same row of small values, as Arrow batches of at most `BATCH_EQUAL_ROWS` rows."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(struct(columns))
    scalars = [pa.scalar(value, type=field.type) for value, field in zip(values, schema, strict=True)]
    for start in range(0, n, BATCH_EQUAL_ROWS):
        length = min(BATCH_EQUAL_ROWS, n - start)
        yield pa.RecordBatch.from_arrays([pa.repeat(one, length) for one in scalars], schema=schema)


def _chunks(rows: Iterable[R], weigh: Callable[[R], int]) -> Iterator[list[R]]:
    chunk: list[R] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += weigh(row)
        if len(chunk) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
