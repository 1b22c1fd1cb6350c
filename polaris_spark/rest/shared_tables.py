"""Refuses requests after which a client deletes files that another state of the catalog may need.

Iceberg's procedures `expire_snapshots` and `remove_orphan_files`, and those of other engines, know only the state that
they loaded. They delete files that other branches and tags of the catalog still read. The procedures `expire` and
`remove_orphans` of this product know all states.
"""

from __future__ import annotations

from collections.abc import Sequence

from polaris_spark.catalog.branches.store_heads import other_holders
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.entities.entities import TableName, find, table_key
from polaris_spark.catalog.merges.transactions import branch_of_transaction, is_open_transaction
from polaris_spark.catalog.tables.table_changes import TableCommit
from polaris_spark.errors import BadRequestError


def require_removable_snapshots(catalog: Catalog, commits: Sequence[TableCommit]) -> None:
    """Check that snapshots may be removed, if commits remove any. The client may delete their files as soon as it has
    the answer.

    Raises:
        BadRequestError: the catalog shows the state of an open transaction, or another branch or tag has the table.
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
        require_unshared(catalog, commit.name, "snapshots of {} cannot be removed by a client", "expire")


def require_unshared(catalog: Catalog, name: TableName, refusal: str, job: str) -> None:
    """Check that no other branch or tag of the catalog has a table. Do nothing if there is no such table.

    A branch that another process creates from an earlier commit during this check may be missed.

    Args:
        refusal: beginning of the error's message. `{}` stands for the name of the table.
        job: name of the procedure that the message suggests.
    Raises:
        BadRequestError: another branch or tag has the table, or a dropped one that can be restored.
    """
    found = find(catalog.view(), table_key(name))
    if found is None:
        return
    branch = branch_of_transaction(catalog.branch) or catalog.branch
    other = next(other_holders(catalog.references, head_name(catalog.row, branch), found.entity_id), None)
    if other is None:
        return
    kind = "tag" if other.is_tag else "branch"
    holder = f"another {kind}" if catalog.context.has_owners else f"the {kind} {other.name!r}"
    raise BadRequestError(
        f"{refusal.format(name)}, because {holder} of the catalog also has the table, and may need the files that the "
        f"client deletes; CALL system.{job}(table => '{name}') instead, which keeps what any branch or tag needs"
    )
