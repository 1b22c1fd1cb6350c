"""`purge_dropped`: deletes files of tables that were dropped with PURGE, if the drop itself did not delete them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polaris_spark.errors import InputError, ReferenceGoneError
from polaris_spark.jobs.maintenance import job, unless_dry_run
from polaris_spark.jobs.procedure import Call, Parameter
from polaris_spark.jobs.remove_orphans import COLUMNS, DEFAULT_FILES

if TYPE_CHECKING:
    from polaris_spark.catalog.branches.store_heads import StoreHead
    from polaris_spark.maintenance.orphans.candidates import Search
    from polaris_spark.maintenance.orphans.purges import PendingPurge, Purges, RecordPurges
    from polaris_spark.maintenance.orphans.search import FileOutcome, Means
    from polaris_spark.rest.session import Session

_ANY_AGE = 1 << 62
"""A time later than the modification time of any file, in milliseconds since 1970: files of every age are deleted."""


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.files.permits import Permit
    from polaris_spark.jobs.remove_orphans import means_of, row_of
    from polaris_spark.maintenance.orphans.candidates import Search
    from polaris_spark.maintenance.orphans.decisions import Comparison, Mismatch
    from polaris_spark.maintenance.orphans.known_files import Names
    from polaris_spark.maintenance.orphans.purges import record
    from polaris_spark.maintenance.orphans.search import KEPT, FileOutcome

    session = call.session
    max_files = arguments.get("max_files", DEFAULT_FILES)
    if max_files < 1:
        raise InputError(f"max_files is {max_files}; it must be at least 1")
    session.catalog.head()  # raises an error if the realm was migrated to another store
    oldest = session.connection.clock.now_ms() - session.properties.grace
    search = Search(
        (),
        _ANY_AGE,
        Names(Comparison()),
        Mismatch.IGNORE,
        Permit([session.catalog.context.warehouse]),
        oldest,
        max_files,
    )
    dry_run = arguments.get("dry_run", False)
    call.progress("looking for drops")
    means = means_of(call, PROCEDURE.name, dry_run=dry_run)
    heads = means.heads()
    purges = _pending(session, heads, oldest)
    outcomes = [
        FileOutcome(place, None, None, one.owner, KEPT, one.why)
        for one in purges.kept
        for place in one.places or ("",)
    ]
    if purges.there:
        outcomes += _purge(call, search, means, heads, purges.there, dry_run=dry_run)
    if not dry_run:
        if purges.there:
            purges = _pending(session, heads, oldest)
        record(
            purges.gone,
            lambda name, change: _commit(session, name, change),
            session.catalog.context,
            session.principal,
        )
    return [row_of(outcome) for outcome in outcomes]


def _pending(session: Session, heads: Sequence[StoreHead], oldest: int) -> Purges:
    from polaris_spark.catalog.catalogs.references import head_name
    from polaris_spark.maintenance.orphans.purges import pending

    catalog = session.catalog
    realm, prefix = catalog.references.store.realm, head_name(catalog.row, "")
    mine = [head for head in heads if head.realm == realm and head.reference.startswith(prefix)]
    return pending(mine, catalog.references.store, catalog.files, oldest_ms=oldest)


def _commit(session: Session, reference: str, change: RecordPurges) -> None:
    with contextlib.suppress(ReferenceGoneError):  # a dropped branch has no log to write to
        session.catalog.references.commit(reference, change)


def _purge(
    call: Call,
    search: Search,
    means: Means,
    heads: Sequence[StoreHead],
    drops: Sequence[PendingPurge],
    *,
    dry_run: bool,
) -> Iterator[FileOutcome]:
    from polaris_spark.catalog.files.permits import Permit
    from polaris_spark.maintenance.orphans.candidates import PurgedTables, find_purgeable
    from polaris_spark.maintenance.orphans.search import (
        DELETED,
        WOULD_DELETE,
        FileOutcome,
        broken_ones,
        delete_in_waves,
    )

    warehouse = call.session.catalog.context.warehouse
    permit = Permit([warehouse], places=[place for one in drops for place in one.places])
    search = search._replace(permit=permit)
    purged_tables = PurgedTables(
        drops[0].head,
        tuple(one.drop for one in drops),
        tuple((place, one.drop.owner) for one in drops for place in one.places),
        warehouse,
        permit,
    )
    call.progress("reading what tables need")
    found = find_purgeable(means.engine, search, heads, purged_tables)
    yield from broken_ones(found.broken)
    left: set[str] = set()
    """Tables with a file that was not deleted. Later phases keep the manifests and manifest lists of these tables."""
    for phase in found.phases:
        if dry_run:
            yield from (FileOutcome(*orphan, outcome=WOULD_DELETE) for orphan in phase)
            continue
        going = [orphan for orphan in phase if left.isdisjoint(found.named_by[orphan.location])]
        outcomes = list(delete_in_waves(search, means, going, heads))
        yield from outcomes
        for outcome in outcomes:
            if outcome.outcome != DELETED:
                left |= found.named_by[outcome.location]


PROCEDURE = job(
    name="purge_dropped",
    comment="Delete the files of tables that were dropped with PURGE, if the drop itself did not delete them.",
    parameters=(
        Parameter("dry_run", "BOOLEAN", "only report what would be deleted"),
        Parameter("max_files", "BIGINT", f"maximum number of files to delete; default {DEFAULT_FILES}"),
    ),
    columns=COLUMNS,
    run=_run,
    over_http=True,
    deletes=unless_dry_run,
    scope="catalog",
)
