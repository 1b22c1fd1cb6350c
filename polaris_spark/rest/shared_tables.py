"""Refuses requests after which a client deletes files that another branch or tag of the catalog may need.

Iceberg's procedures `expire_snapshots` and `remove_orphan_files`, and those of other engines, know only the branch that
they loaded. The procedures `expire` and `remove_orphans` of this product know all branches and tags.
"""

from __future__ import annotations

from collections.abc import Sequence

from polaris_spark.catalog.branches.branches import other_holders
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import TableName, find, table_key
from polaris_spark.catalog.merges.transactions import branch_of_transaction, is_open_transaction
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.tables.contents import content_of, holdings_of
from polaris_spark.catalog.tables.table_changes import TableCommit
from polaris_spark.errors import BadRequestError
from polaris_spark.names import AREA
from polaris_spark.system.registrations import Registered, name_parts


def require_removable_snapshots(catalog: Catalog, commits: Sequence[TableCommit]) -> None:
    """Check that snapshots may be removed, if commits remove any. The client may delete their files as soon as it has
    the answer.

    Raises:
        BadRequestError: the catalog shows the state of an open transaction, or another branch or tag may need the
            files.
    """
    for commit in commits:
        if not any(str(one.get("action")).lower() == "remove-snapshots" for one in commit.updates):
            continue
        if is_open_transaction(catalog):
            raise BadRequestError(
                f"snapshots of {commit.name} cannot be removed in a transaction, because clients such as Iceberg's "
                "expire_snapshots delete the files of the snapshots at once, and a rollback could not restore them; "
                "commit the transaction or roll it back first"
            )
        require_unshared(catalog, commit.name)


def require_unshared(catalog: Catalog, name: TableName) -> None:
    """Check that no other branch or tag of the catalog may need files of a table. Do nothing if there is no such table.

    A branch that is created after this check, but before the client deletes files, is not seen.

    Raises:
        BadRequestError: a branch or tag, also a dropped one that can be restored, has the table, or a table or view
            that uses one of its locations.
    """
    state = catalog.view()
    found = find(state, table_key(name))
    if found is None:
        return
    own = branch_of_transaction(catalog.branch) or catalog.branch
    used = holdings_of(content_of(state, found.content, Table))
    other = next(other_holders(catalog, own, found.entity_id, used.owned | used.unconfirmed), None)
    if other is not None:
        holder = "another branch or tag" if catalog.context.has_owners else _named(other)
        raise BadRequestError(
            f"files of {name} cannot be deleted by a client, because {holder} may need them; call the procedures "
            "expire and remove_orphans of the catalog instead, which keep what any branch or tag needs"
        )


def _named(holder: Registered) -> str:
    parts = name_parts(holder.name)
    assert parts is not None
    kind, name = ("tag" if parts.is_tag else "branch"), parts.name
    if name.startswith(AREA):
        kind, name = "staging area", name.removeprefix(AREA)
    if holder.registration.state == "live":
        return f"the {kind} {name!r}"
    return f"the dropped {kind} {name!r}, which can be restored until a sweep ends it,"
