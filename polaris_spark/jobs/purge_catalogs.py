"""`purge_catalogs`: deletes the files in the warehouses of dropped catalogs that can no longer be restored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.errors import BadRequestError
from polaris_spark.jobs.maintenance import OLDER_THAN, job, unless_dry_run
from polaris_spark.jobs.procedure import Call, Parameter
from polaris_spark.jobs.remove_orphans import COLUMNS, DEFAULT_FILES


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.catalogs.catalog_changes import ForgetCatalog
    from polaris_spark.catalog.catalogs.catalogs import warehouse_of
    from polaris_spark.catalog.catalogs.references import CATALOGS, dropped_in
    from polaris_spark.catalog.entities.properties import WAREHOUSE
    from polaris_spark.catalog.files.folders import Folders
    from polaris_spark.catalog.files.locations import overlap
    from polaris_spark.jobs.remove_orphans import means_of, row_of, search_of
    from polaris_spark.maintenance.orphans.search import KEPT, FileOutcome, remove

    session, dry_run = call.session, arguments.get("dry_run", False)
    references, folders = session.catalog.references, Folders(session.catalog.files)
    means = means_of(call, PROCEDURE.name, dry_run=dry_run)
    for ended in dropped_in(references.read(CATALOGS), ended=True):
        warehouse, own = ended.row.properties[WAREHOUSE], warehouse_of(ended.row) or ()
        others = [other for other in _warehouses(call) if overlap(own, other)]
        if any(len(other) > len(own) for other in others):
            continue  # until the catalog inside this warehouse has ended, too
        try:
            # The jobs of a catalog that has this warehouse now delete the orphan files in it.
            if not others and folders.exists(warehouse):
                search = search_of(call, {**arguments, "location": warehouse})
                yield from map(row_of, remove(search, means, dry_run=dry_run))
                if any(folders.below(warehouse)):
                    continue
        except BadRequestError as error:
            why = f"{error}; the next run tries again"
            yield row_of(FileOutcome(warehouse, None, None, f"catalog {ended.row.name}", KEPT, why))
            continue
        if not dry_run:
            references.commit(CATALOGS, ForgetCatalog(session.operation(), references.clock, ended))


def _warehouses(call: Call) -> list[tuple[str, ...]]:
    """Return the warehouses of all catalogs that exist or can be restored, as path segments."""
    from polaris_spark.catalog.catalogs.catalogs import warehouse_of
    from polaris_spark.catalog.catalogs.references import CATALOGS, kept_catalogs

    kept = kept_catalogs(call.session.catalog.references.read(CATALOGS))
    return [found for found in map(warehouse_of, kept) if found is not None]


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
