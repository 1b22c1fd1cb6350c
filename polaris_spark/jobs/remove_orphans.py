"""`remove_orphans`: deletes files that no table or view of the store needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from polaris_spark.errors import InputError, PolarisError
from polaris_spark.jobs.engine import engine_of
from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.maintenance import OLDER_THAN, job, older_than
from polaris_spark.jobs.policy_use import BY_POLICY, choose_orphans
from polaris_spark.jobs.procedure import Call, Parameter, columns

if TYPE_CHECKING:
    from polaris_spark.maintenance.orphans.candidates import Orphan, Search
    from polaris_spark.maintenance.orphans.search import FileOutcome, Means
    from polaris_spark.rest.session import Session

DEFAULT_FILES = 100_000
"""Default maximum number of files that one run deletes. There is a limit because the result lists each file."""


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.maintenance.orphans.search import remove

    search, dry_run = search_of(call, arguments), arguments.get("dry_run", True)
    refused = list(_refused(search))
    search = search._replace(roots=tuple(sorted({*search.roots}.difference(one.location for one in refused))))
    means = means_of(call, PROCEDURE.name, dry_run=dry_run)
    outcomes = remove(search, means, dry_run=dry_run)
    return [row_of(outcome) for outcome in (*refused, *outcomes)] or list(_if_empty(call.session, arguments))


def _refused(search: Search) -> Iterator[FileOutcome]:
    """Yield an outcome with the reason for each folder in which no file may be deleted.

    An example is a table location that is reached through a symbolic link.
    """
    from polaris_spark.maintenance.orphans.search import KEPT, FileOutcome

    for root in search.roots:
        try:
            search.permit.grant(f"{root.rstrip('/')}/x")
        except (OSError, ValueError, PolarisError) as error:
            yield FileOutcome(root, None, None, None, KEPT, f"nothing is deleted here: {error}")


def _if_empty(session: Session, arguments: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Yield a row with a message if the requested location does not contain any file."""
    from polaris_spark.catalog.files.files import absolute
    from polaris_spark.catalog.files.folders import Folders
    from polaris_spark.maintenance.orphans.search import EMPTY, FileOutcome

    location = arguments.get("location")
    if location is not None and not any(Folders(session.catalog.files).below(absolute(location))):
        yield row_of(FileOutcome(location, None, None, None, EMPTY, "there is no file in it"))


def search_of(call: Call, arguments: Mapping[str, Any]) -> Search:
    """Return what a call of `remove_orphans` with these arguments searches for."""
    from polaris_spark.catalog.files.permits import Permit
    from polaris_spark.maintenance.orphans.candidates import Search
    from polaris_spark.maintenance.orphans.decisions import (
        DEFAULT_AGE_MS,
        Mismatch,
        comparison,
        outermost,
        require_old,
    )
    from polaris_spark.maintenance.orphans.known_files import Names

    session = call.session
    now = session.connection.clock.now_ms()
    given = older_than(call, arguments, now)
    max_files = arguments.get("max_files", DEFAULT_FILES)
    if max_files < 1:
        raise InputError(f"max_files is {max_files}; it must be at least 1")
    names = Names(comparison(arguments.get("equal_schemes"), arguments.get("equal_authorities")))
    warehouse, folders = session.catalog.context.warehouse, _roots(session, arguments)
    roots = tuple(outermost(folders, names.of))
    policies = choose_orphans(session, arguments, roots, names, now, DEFAULT_AGE_MS)
    before = policies.before_ms if given is None else given
    require_old(now, before, force=arguments.get("force", False))
    return Search(
        roots=roots,
        before_ms=before,
        limits=policies.limits,
        names=names,
        mismatch=Mismatch.parse(arguments.get("prefix_mismatch_mode", policies.mismatch or "error")),
        permit=Permit(folders)
        if arguments.get("location") is not None
        else Permit([warehouse], places=folders),
        oldest_purge_ms=now - session.properties.grace,
        max_files=max_files,
        keeps_strays=_keeps_strays(session, folders),
    )


def _keeps_strays(session: Session, folders: Sequence[str]) -> bool:
    """Return whether files outside all locations of tables and views must be kept.

    They must be kept if the property `gc.enabled` is false for this catalog, or for another catalog of the realm whose
    warehouse overlaps one of the folders, including dropped catalogs that can be restored.
    """
    from polaris_spark.catalog.catalogs.catalogs import warehouse_of
    from polaris_spark.catalog.catalogs.references import CATALOGS, kept_catalogs
    from polaris_spark.catalog.files.files import absolute
    from polaris_spark.catalog.files.locations import overlap, segments
    from polaris_spark.catalog.tables.snapshot_expiry import gc_enabled

    catalog = session.catalog
    rows, binding = kept_catalogs(catalog.references.read(CATALOGS)), catalog.context.binding
    own = [row for row in rows if row.entity_id == catalog.row.entity_id]
    if not gc_enabled([binding.retention(row.properties) for row in own]):
        return True
    others = [row for row in rows if row not in own]
    kept = [warehouse_of(row) for row in others if not gc_enabled([row.properties])]
    looked_in = [segments(absolute(one)) for one in folders]
    return any(place is not None and overlap(place, one) for place in kept for one in looked_in)


def _roots(session: Session, arguments: Mapping[str, Any]) -> list[str]:
    """Return the folders in which to search for orphan files."""
    from polaris_spark.catalog.files.folders import Folders
    from polaris_spark.catalog.files.locations import folder
    from polaris_spark.catalog.rows import LOCATIONS
    from polaris_spark.index.keys import decode_key

    table, location = arguments.get("table"), arguments.get("location")
    if table is not None and location is not None:
        raise InputError("give a table or a location, not both")
    if location is not None:
        root = folder(location)
        if not Folders(session.catalog.files).exists(root):
            raise InputError(f"the location {location!r} does not exist")
        return [root]
    if table is not None:
        return _places_of(session, table)
    owned = [_uri(decode_key(key).path) for key, _ in session.catalog.head().index(LOCATIONS).range()]
    return [session.catalog.context.warehouse, *owned]


def _places_of(session: Session, table: str) -> list[str]:
    from polaris_spark.catalog.entities.entities import TableName, table_key
    from polaris_spark.catalog.entities.materialized_views import is_materialized, storage_name
    from polaris_spark.catalog.metadata.rows import Table, View
    from polaris_spark.catalog.rows import NAMES, TABLE, VIEW
    from polaris_spark.catalog.tables.contents import content_of, places

    head, reader = session.catalog.head(), session.catalog.reader
    *namespace, last = levels_named(head, session.catalog.name, "table", table)
    name = TableName(tuple(namespace), last)
    names = head.index(NAMES)
    of_table, of_view = (names.get(table_key(name, kind)) for kind in (TABLE, VIEW))
    if of_table is not None:
        return [_uri(place) for place in places(content_of(reader, of_table.pointer, Table))]
    if of_view is not None:
        view = content_of(reader, of_view.pointer, View)
        found = {*places(view)}
        storage = names.get(table_key(storage_name(name)))
        if isinstance(view, View) and is_materialized(view) and storage is not None:
            found |= places(content_of(reader, storage.pointer, Table))
        return [_uri(place) for place in sorted(found)]
    raise InputError(f"there is no table or view {name}")


def _uri(parts: tuple[str, ...]) -> str:
    return "/".join(parts)


def means_of(call: Call, job: str, *, dry_run: bool) -> Means:
    """Return the resources that one run of a job uses.

    Unless it is a dry run, first permanently remove from the registry the references that were dropped longer ago than
    the grace period. Branches among them can then no longer be restored, so their files are not needed.
    """
    from polaris_spark.catalog.catalogs.catalog_changes import end_dropped
    from polaris_spark.catalog.drops.overlapping_tables import heads_around
    from polaris_spark.maintenance.orphans.search import Means
    from polaris_spark.maintenance.periods import realm_policy

    session = call.session
    if not dry_run:
        end_dropped(session.catalog.references, realm_policy(session.catalog).grace_of, session.operation())
    return Means(
        engine_of(call),
        lambda: heads_around(session.catalog),
        session.catalog.references.store.for_deleting().of_realm,
        DeletionRecord(session, job),
    )


class DeletionRecord:
    """Implementation of `search.Record` that adds to the catalog's record of deleted files."""

    def __init__(self, session: Session, job: str) -> None:
        self._session = session
        self._job = job

    def deleting(self, orphans: Sequence[Orphan]) -> None:
        """Record files before they are deleted."""
        self._record("deleted", [(one.owner, one.location, one.size) for one in orphans])

    def failed(self, outcomes: Sequence[FileOutcome]) -> None:
        """Record files that could not be deleted."""
        self._record("failed", [(one.owner, one.location, one.size or 0) for one in outcomes])

    def _record(
        self, outcome: Literal["deleted", "failed"], files: Sequence[tuple[str | None, str, int]]
    ) -> None:
        from polaris_spark.commits.change import Operation
        from polaris_spark.maintenance.deletion_records import DeletedFile, DeletedFiles, record_deletions
        from polaris_spark.maintenance.periods import own_policy

        catalog, who = self._session.catalog, self._session.principal
        now = catalog.context.clock.now_ms()
        batches = [
            DeletedFiles(
                now, who, self._job, 0, owner or "", outcome, tuple(DeletedFile(*file) for file in some)
            )
            for owner, some in _by_owner(files).items()
        ]
        record_deletions(catalog, Operation(b"", who), batches, keep_ms=own_policy(catalog).retention_ms)


def _by_owner(files: Iterable[tuple[str | None, str, int]]) -> dict[str | None, list[tuple[str, str, int]]]:
    found: dict[str | None, list[tuple[str, str, int]]] = {}
    for owner, location, size in files:
        found.setdefault(owner, []).append((location, "orphan", size))
    return found


def row_of(outcome: FileOutcome) -> tuple[Any, ...]:
    """Return an outcome as a row of the result."""
    modified = outcome.modified_ms
    time = None if modified is None else datetime.fromtimestamp(modified / 1_000, timezone.utc)
    return (outcome.location, outcome.size, time, outcome.owner, outcome.outcome, outcome.error)


COLUMNS = columns("path STRING, size BIGINT, modified TIMESTAMP, owner STRING, outcome STRING, error STRING")

PROCEDURE = job(
    name="remove_orphans",
    comment="Delete files that no table or view of the store needs; by default, only report them.",
    parameters=(
        Parameter(
            "table",
            "STRING",
            "search only the locations of this table or view (if it is materialized, also of its storage table)",
        ),
        Parameter(
            "location",
            "STRING",
            "search only this folder; by default, the warehouse and the locations outside it that tables own",
            is_location=True,
        ),
        Parameter(
            "older_than", "STRING", f"delete only files whose last change is {OLDER_THAN}; default '3 d'"
        ),
        Parameter("dry_run", "BOOLEAN", "only report what would be deleted; default true"),
        Parameter("force", "BOOLEAN", "whether older_than may be less than 24 hours"),
        Parameter(
            "max_files", "BIGINT", f"maximum number of files that one run deletes; default {DEFAULT_FILES}"
        ),
        Parameter(
            "equal_schemes", "MAP<STRING,STRING>", "schemes that count as equal, such as 's3a,s3n' to 's3'"
        ),
        Parameter(
            "equal_authorities",
            "MAP<STRING,STRING>",
            "authorities that count as equal, such as 'host1,host2' to 'host'",
        ),
        Parameter(
            "prefix_mismatch_mode",
            "STRING",
            "what to do with a file whose path a table names with another scheme or authority: error, ignore or "
            "delete",
        ),
        BY_POLICY,
    ),
    columns=COLUMNS,
    run=_run,
    over_http=True,
    scope="store",
    deletes=lambda arguments: not arguments.get("dry_run", True),
)
