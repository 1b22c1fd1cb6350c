"""All procedures by name: those of this package, and those that other packages add by entry points."""

from __future__ import annotations

import difflib
import importlib.metadata
import logging
from functools import cache
from typing import TYPE_CHECKING, Any

from polaris_spark.errors import InputError
from polaris_spark.jobs import (
    access,
    adopt,
    branches,
    catalogs,
    checks,
    compact_index,
    expire,
    export_metadata,
    fsck,
    import_catalog,
    merges,
    migrate_realm,
    policies,
    purge_catalogs,
    purge_dropped,
    purge_realm,
    remove_orphans,
    set_catalog_properties,
    staging,
    storage_summary,
    sweep,
    transactions,
    trim,
    undrop,
    use,
)
from polaris_spark.jobs.materialized_views import alter, create, drop, explain, refresh, show, stale
from polaris_spark.jobs.procedure import Call, Procedure, Watch
from polaris_spark.jobs.queue import history, tasks

if TYPE_CHECKING:
    from polaris_spark.rest.session import Session

logger = logging.getLogger(__name__)

GROUP = "polaris_spark.procedures"
"""Entry-point group in which other packages register procedures. Each entry point refers to a `Procedure`; the name of
the entry point is not used."""

ADD_SCHEDULE, ENQUEUE = tasks.adding(lambda name: find(name))

BUILT_IN = (
    *access.PROCEDURES,
    adopt.PROCEDURE,
    branches.CREATE,
    branches.DROP,
    branches.UNDROP,
    branches.DROP_UNUSED,
    branches.SHOW,
    branches.DESCRIBE,
    branches.RENAME,
    branches.RENAME_TAG,
    branches.REASSIGN,
    branches.PROTECT,
    branches.UNPROTECT,
    branches.ALTER,
    branches.CREATE_TAG,
    branches.DROP_TAG,
    branches.UNDROP_TAG,
    branches.SHOW_TAGS,
    branches.DESCRIBE_TAG,
    branches.ALTER_TAG,
    catalogs.CREATE,
    catalogs.SHOW,
    catalogs.DESCRIBE,
    catalogs.RENAME,
    catalogs.DROP,
    catalogs.UNDROP,
    checks.ADD,
    checks.DROP,
    checks.SHOW,
    compact_index.PROCEDURE,
    expire.PROCEDURE,
    export_metadata.PROCEDURE,
    fsck.PROCEDURE,
    import_catalog.IMPORT,
    import_catalog.LOAD,
    merges.DIFF,
    merges.MERGE,
    merges.REVERT,
    merges.CHERRY_PICK,
    migrate_realm.PROCEDURE,
    purge_realm.PROCEDURE,
    purge_catalogs.PROCEDURE,
    purge_dropped.PROCEDURE,
    remove_orphans.PROCEDURE,
    set_catalog_properties.PROCEDURE,
    *policies.PROCEDURES,
    history.SHOW_RUNS,
    ADD_SCHEDULE,
    tasks.DROP_SCHEDULE,
    tasks.SHOW_SCHEDULES,
    ENQUEUE,
    tasks.SHOW_QUEUE,
    tasks.RETRY_TASK,
    tasks.DROP_TASK,
    staging.STAGE,
    staging.COMMIT_STAGED,
    storage_summary.PROCEDURE,
    sweep.PROCEDURE,
    transactions.BEGIN,
    transactions.COMMIT,
    transactions.ROLLBACK,
    transactions.SAVEPOINT,
    trim.PROCEDURE,
    undrop.PROCEDURE,
    use.PROCEDURE,
    create.PROCEDURE,
    alter.PROCEDURE,
    drop.PROCEDURE,
    show.SHOW,
    show.DESCRIBE,
    refresh.PROCEDURE,
    explain.PROCEDURE,
    stale.PROCEDURE,
)
"""The procedures of this package."""


@cache
def procedures() -> dict[str, Procedure]:
    """Return all procedures by name. Procedures of other packages that cannot be loaded are logged and left out."""
    found = {one.name: one for one in BUILT_IN}
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            procedure = entry.load()
            if not isinstance(procedure, Procedure):
                raise InputError(f"the entry point must refer to a Procedure, got {procedure!r}")
            if procedure.name in found:
                raise InputError(f"there is already a procedure {procedure.name!r}; rename the new procedure")
        except Exception:  # other packages may raise any error; the catalog works without this procedure
            logger.exception("the procedure %s cannot be loaded", entry.value)
            continue
        found[procedure.name] = procedure
    return found


def find(name: str) -> Procedure:
    """Return the procedure with this name, ignoring case.

    Raises:
        InputError: the procedure does not exist; the message lists the existing procedures.
    """
    known = procedures()
    found = known.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"there is no procedure {name!r}; {hint}the procedures are: {', '.join(known)}")
    return found


def call(
    session: Session, name: str, /, *, spark: Any = None, watch: Watch | None = None, **arguments: Any
) -> list[tuple[Any, ...]]:
    """Call a procedure from Python.

    Args:
        session: the opened catalog.
        name: name of the procedure.
        spark: the `SparkSession`, for procedures that run as Spark jobs.
        watch: called with the progress of the call.
        arguments: arguments by name; an argument with the value None counts as not given.
    Returns:
        the rows, as tuples with one value per column.
    Raises:
        InputError: the procedure does not exist, or an argument is not valid.
    """
    return find(name).rows(Call(session, None if spark is None else lambda: spark, watch), arguments)
