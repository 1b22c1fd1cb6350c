"""Steps of tests of the archived log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polaris_spark.catalog.branches.archived_log import ARCHIVE, LOG, parts_in
from polaris_spark.clock import ManualClock
from polaris_spark.jobs.registry import call
from polaris_spark.store.cache import process_cache
from tests.views.catalogs import Catalog, Row, rows

DAY = 86_400_000


def days(catalog: Catalog, clock: ManualClock, n: int) -> None:
    """A change a day."""
    for day in range(n):
        catalog.set_property("db", "t", "day", str(day))
        clock.advance(DAY)


def sweep(catalog: Catalog) -> None:
    """Sweep the realm with the periods of the catalog, and forget what is cached."""
    call(catalog.session, "sweep")
    process_cache().clear()


def changes(opened: Catalog, **options: str) -> list[Row]:
    """The rows of `changes` of the realm of a catalog, in order, without those of the archive itself and without the
    column `state_stored`."""
    found = rows("changes", store=opened.store, **options)
    return sorted(
        (
            {name: value for name, value in row.items() if name != "state_stored"}
            for row in found
            if row["name"] != ARCHIVE
        ),
        key=lambda row: (row["reference"], row["number"], row["position"]),
    )


def assert_same(found: list[Row], expected: list[Row]) -> None:
    assert [(r["reference"], r["number"], r["position"]) for r in found] == [
        (r["reference"], r["number"], r["position"]) for r in expected
    ]
    assert found == expected


def parts(catalog: Catalog) -> list[Any]:
    """All parts of the archive of the realm."""
    return parts_in(catalog.session.catalog.references.read(ARCHIVE).index(LOG).range())


def floor(catalog: Catalog) -> int:
    return catalog.session.catalog.head().head.floor_number


def branch(catalog: Catalog, clock: ManualClock, name: str = "dev", *, n: int) -> list[Row]:
    """Create a branch and make a change a day to it. Return the rows of its changes."""
    call(catalog.session, "create_branch", name=name)
    path = Path(catalog.store.removeprefix("sqlite://").split("?")[0])
    opened = Catalog(path, branch=name, clock=clock)
    begun = opened.session.catalog.head().head.number
    days(opened, clock, n)
    opened.session.close()
    return [row for row in of_branch(catalog, name) if row["number"] > begun]


def of_branch(catalog: Catalog, name: str) -> list[Row]:
    """The rows of `changes` of the realm of a catalog that have a branch, in order."""
    return [row for row in changes(catalog) if row["branch"] == name]
