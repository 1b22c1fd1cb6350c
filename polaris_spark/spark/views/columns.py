"""Columns of system views, and conversion of rows to Arrow batches of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
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
"""Maximum number of rows in an Arrow batch."""

BATCH_BYTES = 4 * 2**20
"""Approximate size limit of an Arrow batch, in bytes. The row that reaches the limit is the last row of the batch."""

BATCH_EQUAL_ROWS = 16_384
"""Maximum number of rows in an Arrow batch whose rows are all equal."""

STRING, LONG, INT, BOOLEAN, BINARY = StringType(), LongType(), IntegerType(), BooleanType(), BinaryType()
TIMESTAMP = TimestampType()
"""Spark type of times. The values in rows are microseconds since 1970, UTC."""
STRINGS, LONGS = ArrayType(StringType(), containsNull=False), ArrayType(LongType(), containsNull=False)
STRING_MAP = MapType(StringType(), StringType(), valueContainsNull=False)
"""Spark type of maps from string to string. The values in rows are lists of pairs (see `pairs`)."""
LONG_MAP = MapType(StringType(), LongType(), valueContainsNull=False)
"""Spark type of maps from string to number. The values in rows are lists of pairs, too."""


class ViewColumn(NamedTuple, Generic[R_contra]):
    """A column of a system view. `value` returns the column's value for a row of type `R`."""

    name: str
    type: DataType
    comment: str
    value: Callable[[R_contra], Any]
    needs: str = "content"
    """Data that must be read before `value` can be called:

    - `""` (in an `EntityView`): only the entry of the index `names`. `value` then accepts an `EntityEntry`, or a row
      with the field `entry`.
    - `"content"`: also the object that describes the entity, such as a table.
    - Any other text (in any view): the name of additional data. The view reads this data only if the caller passes the
      name in the argument `needs` of `rows` or `of`.
    """

    def field(self) -> StructField:
        """Return the column as a field of a Spark schema. The field's metadata contains the comment."""
        return StructField(self.name, self.type, nullable=True, metadata={"comment": self.comment})


def struct(columns: Iterable[ViewColumn[Any]]) -> StructType:
    """Return the Spark schema that consists of these columns."""
    return StructType([column.field() for column in columns])


def chosen(columns: Sequence[ViewColumn[R]], schema: StructType, view: str) -> tuple[ViewColumn[R], ...]:
    """Return the columns that a Spark schema contains, in the order of the schema.

    Args:
        columns: all columns of the view.
        schema: the requested columns.
        view: name of the view, for messages.
    Raises:
        InputError: the view does not have a column of the schema, or the column has another type.
    """
    by_name = {column.name: column for column in columns}
    found = []
    for field in schema.fields:
        column = by_name.get(field.name)
        if column is None:
            raise InputError(
                f"view {view!r} has no column {field.name!r}; its columns are: {', '.join(by_name)}"
            )
        if column.type.simpleString() != field.dataType.simpleString():
            raise InputError(
                f"column {field.name!r} of view {view!r} has the type {column.type.simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )
        found.append(column)
    return tuple(found)


_FIRST_MS, _LAST_MS = -62_104_060_800_000, 253_370_764_800_000
"""Range of supported times, in milliseconds since 1970: the years 2 to 9998.

Clients can send any 64-bit number as a time. Python supports the years 1 to 9999, and converting a time to another time
zone must not leave this range.
"""


def micros(milliseconds: int | None) -> int | None:
    """Convert a time in milliseconds since 1970 to the value of a TIMESTAMP column: microseconds since 1970.

    Return None if the time is None or not in the years 2 to 9998, because PySpark cannot collect rows with other years.
    """
    if milliseconds is None or not _FIRST_MS <= milliseconds < _LAST_MS:
        return None
    return milliseconds * 1_000


def text_bytes(mapping: Mapping[str, str]) -> int:
    """Return the approximate size of a string map in a row, in bytes."""
    return 32 * len(mapping) + sum(map(len, mapping.values()))


class _Field(msgspec.Struct):
    name: str = ""


class _Fields(msgspec.Struct):
    fields: list[_Field] = []


_fields = msgspec.json.Decoder(_Fields).decode


def field_names(text: bytes | str) -> list[str]:
    """Return the names of the fields of a schema or partition spec in JSON."""
    return [field.name for field in _fields(text).fields]


def pairs(mapping: Mapping[str, Any] | None) -> list[tuple[str, Any]] | None:
    """Return a mapping as a list of (key, value) pairs, the form of a map in an Arrow column. None stays None."""
    return None if mapping is None else list(mapping.items())


def batches(
    columns: Sequence[ViewColumn[R]], rows: Iterable[R], weigh: Callable[[R], int]
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of rows as Arrow batches. A batch has at most `BATCH_ROWS` rows and about `BATCH_BYTES` bytes.

    Args:
        weigh: returns the approximate size of a row, in bytes.
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


def equal_rows(columns: Sequence[ViewColumn[Any]], values: Sequence[Any], n: int) -> Iterator[pa.RecordBatch]:
    """Yield `n` copies of the row `values` as Arrow batches of at most `BATCH_EQUAL_ROWS` rows. The row must be
    small."""
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
