"""`purge_catalogs`: deletes the files in the warehouses of dropped catalogs that can no longer be restored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from polaris_spark.jobs.maintenance import OLDER_THAN, job, unless_dry_run
from polaris_spark.jobs.procedure import Call, Parameter
from polaris_spark.jobs.remove_orphans import COLUMNS, DEFAULT_FILES

if TYPE_CHECKING:
    from polaris_spark.catalog.references import DroppedCatalog


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.catalog_changes import ForgetCatalog
    from polaris_spark.catalog.folders import Folders
    from polaris_spark.catalog.properties import WAREHOUSE
    from polaris_spark.catalog.references import CATALOGS, dropped_in
    from polaris_spark.jobs.remove_orphans import means_of, row_of, search_of
    from polaris_spark.maintenance.orphans.search import remove

    session, dry_run = call.session, arguments.get("dry_run", False)
    references, folders = session.catalog.references, Folders(session.catalog.files)
    means = means_of(call, PROCEDURE.name, dry_run=dry_run)
    for ended in dropped_in(references.read(CATALOGS), ended=True):
        warehouse = ended.row.properties[WAREHOUSE]
        if not _is_used(call, ended) and folders.exists(warehouse):
            search = search_of(call, {**arguments, "location": warehouse})
            yield from (row_of(outcome) for outcome in remove(search, means, dry_run=dry_run))
            if any(folders.below(warehouse)):
                continue
        if not dry_run:
            references.commit(CATALOGS, ForgetCatalog(session.operation(), references.clock, ended))


def _is_used(call: Call, ended: DroppedCatalog) -> bool:
    """Whether the warehouse of a catalog overlaps that of another catalog, whose jobs delete orphan files there."""
    from polaris_spark.catalog.catalogs import warehouse_of
    from polaris_spark.catalog.locations import overlap
    from polaris_spark.catalog.references import CATALOGS, kept_catalogs

    references, own = call.session.catalog.references, warehouse_of(ended.row)
    others = map(warehouse_of, kept_catalogs(references.read(CATALOGS)))
    return own is None or any(other is not None and overlap(own, other) for other in others)


PROCEDURE = job(
    name="purge_catalogs",
    comment="Delete the files in the warehouses of dropped catalogs whose grace period has ended.",
    parameters=(
        Parameter("dry_run", "BOOLEAN", "only report what would be deleted"),
        Parameter(
            "older_than", "STRING", f"delete only files whose last change is {OLDER_THAN}; default '3 d'"
        ),
        Parameter("force", "BOOLEAN", "whether older_than may be less than 24 hours"),
        Parameter(
            "max_files",
            "BIGINT",
            f"maximum number of files that one run deletes for each catalog; default {DEFAULT_FILES}",
        ),
    ),
    columns=COLUMNS,
    run=_run,
    over_http=True,
    deletes=unless_dry_run,
    scope="store",
)
