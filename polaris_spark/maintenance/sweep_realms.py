"""Sweep of many realms of a store, whose rows are read in one scan.

In some databases, a scan of one realm reads the rows of all realms. So a sweep of each realm would read the whole store
once for each of them. A sweep of many realms lists the roots of all realms first, reads all rows, and then marks and
deletes the rows of one realm after another. This is safe for the same reason as the sweep of one realm (`sweep_roots`):
the rows of a realm are read after its roots were listed.

The rows are kept in a temporary database of this process. Ids are compared only within a realm, because a realm that
was imported from a file can have the same ids as another realm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from polaris_spark.backends.base import Split
from polaris_spark.catalog.engine import LocalEngine, Progress, Reach, Row, Rows
from polaris_spark.catalog.files.files import Files
from polaris_spark.commits.change import Operation
from polaris_spark.errors import PolarisError, TaskLostError
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep import HEADERS, Rate, Swept, headers_by_realm, roots_of, sweep_from
from polaris_spark.maintenance.sweep_roots import Roots
from polaris_spark.system.registry import References

_SPLITS: Final = 64


class RealmToSweep(NamedTuple):
    """An ACTIVE realm to sweep."""

    name: str
    references: References
    policy: Callable[[], Policy]
    """Returns how long history and rows are kept, as the catalogs of the realm say now. Called when the realm's roots
    are listed, because many realms can take long."""
    operation: Operation
    """Names the principal, for the log of the registry."""
    require: Callable[[], None]
    """Raises an error if the realm is no longer ACTIVE. Called again before rows are deleted."""


class SweptRealm(NamedTuple):
    """The result for one realm."""

    name: str
    swept: Swept | None
    """The rows that were deleted; None if the realm could not be swept."""
    error: PolarisError | None = None
    """Why the realm could not be swept. Nothing of it was deleted, or, if the database failed, a part."""
    note: str = ""
    """Why there was nothing to sweep, although this is no error."""


def sweep_realms(
    realms: Sequence[RealmToSweep],
    *,
    dry_run: bool = False,
    rate: Rate | None = None,
    progress: Progress = lambda _step, _done, _total: None,
) -> Iterator[SweptRealm]:
    """Delete the unreachable rows of realms of one store, and yield the result for each realm, in an undefined order.
    If a realm cannot be swept, the others are swept. After an interruption, call this function again.

    Args:
        dry_run: whether to change nothing, and only count the rows that would be deleted.
        rate: bounds the number of rows that are read and deleted in a second; None for no bound.
        progress: called with the progress. It can raise an error to end the sweep.
    Raises:
        TaskLostError: `progress` raised it, because another process may be sweeping now.
        PolarisError: the rows of the store cannot be read.
    """
    if not realms:
        return
    first = realms[0].references
    engine = LocalEngine(Reach(first.store, Files({}), first.clock), progress)
    rooted: list[tuple[RealmToSweep, Roots]] = []
    for realm in realms:
        try:
            realm.require()
            roots = roots_of(realm.references, realm.policy(), realm.operation, engine, dry_run=dry_run)
        except TaskLostError:
            raise
        except PolarisError as error:
            yield SweptRealm(realm.name, None, error)
        else:
            rooted.append((realm, roots))
    rows = _rows(engine, [realm.references.store.realm for realm, _ in rooted], rate)
    for number, (realm, roots) in enumerate(rooted):
        progress("sweeping realms", number, len(rooted))
        sql = f"SELECT id, part, type, bytes, points FROM {{rows}} WHERE realm = {number}"
        try:
            realm.require()
            own = engine.query(sql, rows=rows).fixed("id")
            swept = sweep_from(roots, realm.references, engine, dry_run=dry_run, rows=own, rate=rate)
            own.release()
        except TaskLostError:
            raise
        except PolarisError as error:
            yield SweptRealm(realm.name, None, error)
        else:
            yield SweptRealm(realm.name, swept)


def _rows(engine: LocalEngine, instances: Sequence[str], rate: Rate | None) -> Rows:
    """Read all object rows of realms in one scan. The column `realm` is the position of the realm in `instances`."""
    numbers = {instance: number for number, instance in enumerate(instances)}

    def scan(reach: Reach, split: Split) -> Iterator[Row]:
        for realm, *row in headers_by_realm(reach, split, rate):
            yield numbers[realm], *row

    splits = engine.reach.backend.splits("objects", instances, _SPLITS)
    return engine.scan(scan, splits, f"realm int, {HEADERS}", "reading headers").fixed("realm", "id")
