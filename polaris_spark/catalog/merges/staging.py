"""Staging areas: many sessions and processes stage changes for a branch, and one commit brings all these changes to the
branch.

A staging area is a branch whose name begins with `+`. Its registration names the branch for which it collects changes,
its *target*. lakeFS has staging tokens for this: a commit seals the token, and later writers get a new one. Here
commits are immutable, so nothing needs to be sealed: `commit_staged` merges the newest commit of the area. Changes that
are staged later belong to the next call.

- If a merge fails, or another commit to the target comes first, nothing is changed: the staged changes stay in the
  area, and the next call merges them.
- Of two processes that call `commit_staged` at the same time, the one whose commit to the target comes first brings
  everything that was staged when it began. The other one then merges the changes that were staged since, or finds none.
- While nothing is staged, the area gets the newest state of the target. While something is staged, it does not: the
  area could be merged into the target and the target into the area at the same time, and the two would then have no
  single newest common ancestor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from polaris_spark.catalog.branches.branches import branch_of, create_area
from polaris_spark.catalog.branches.merge_base import ancestry_of, merge_base, own_branch
from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.merges.differences import changed_entities, namespaces_by_name
from polaris_spark.catalog.merges.merge_steps import Difference, Merged
from polaris_spark.catalog.merges.merges import Options, merge_branch
from polaris_spark.catalog.merges.state_merge import MergeStates, new_difference
from polaris_spark.catalog.merges.transactions import refuse_nested
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import State
from polaris_spark.errors import AlreadyExistsError, NotFoundError, PolarisError
from polaris_spark.names import AREA


def stage(catalog: Catalog, name: str, operation: Operation) -> tuple[Catalog, bool]:
    """Return a catalog object that reads and changes the staging area `name` for the branch of `catalog`, and whether
    the area is new. The area is created if it does not exist. If nothing is staged in the area, it gets the newest
    state of the branch.

    Args:
        name: name of the area, without the `+` with which the names of areas begin.
    Raises:
        AlreadyExistsError: another branch has an area of this name.
        BadRequestError: no area can have this name, or `catalog` shows the state of a transaction.
        ForbiddenError: `catalog` shows a state of the past.
    """
    refuse_nested(catalog)
    target, area = catalog.branch, AREA + name
    if target.startswith(AREA):
        target = _target(catalog, target.removeprefix(AREA))
    try:
        create_area(catalog, area, operation, target)
        is_new = True
    except AlreadyExistsError:
        is_new = False
    found = _target(catalog, name)
    if found != target:
        raise AlreadyExistsError(
            f"the staging area {name!r} is for branch {found!r}; choose another name for {target!r}"
        )
    staged = catalog_at(catalog, area)
    _renew(staged, target, operation)
    return staged, is_new


def commit_staged(
    catalog: Catalog,
    name: str,
    operation: Operation,
    options: Options,
    *,
    require: Callable[[str], None] = lambda _: None,
) -> list[Merged]:
    """Bring all changes of a staging area to its branch, in one commit.

    Args:
        require: called with the name of the branch. Raises an error if the caller may not merge into it.
    Raises:
        CheckFailedError: the branch is protected, and a check does not hold in the merged state.
        MergeConflictError: commits to the branch changed the same things. Nothing was merged, and the area stays as it
            is.
        NotFoundError: there is no such area; or its branch was dropped, renamed or moved, also if another branch has
            the name now.
    """
    catalog.require_present()
    target = _target(catalog, name)
    require(target)
    try:
        onto = catalog_at(catalog, target)
    except NotFoundError as error:
        raise NotFoundError(
            f"the staging area {name!r} is for branch {target!r}, which was dropped or renamed; merge {AREA + name!r} "
            "into another branch"
        ) from error
    merged = merge_branch(onto, AREA + name, operation, options, staged=True)
    if not options.dry_run:
        # The changes are committed. If the area cannot get the newest state now, the next `stage` tries it again.
        with contextlib.suppress(PolarisError):
            _renew(catalog_at(catalog, AREA + name), target, operation)
    return merged


def _target(catalog: Catalog, name: str) -> str:
    """Return the branch for which a staging area collects changes."""
    found = catalog.references.lookup(head_name(catalog.row, AREA + name))
    if found is None or found.registration.state != "live":
        raise NotFoundError(
            f"catalog {catalog.name!r} has no staging area {name!r}; stage({name!r}) creates it"
        )
    return found.registration.origin


def _renew(staged: Catalog, target: str, operation: Operation) -> None:
    """Merge the branch of a staging area into the area, unless something is staged."""

    def difference(view: State) -> Difference:
        view.require_newest()
        theirs = branch_of(staged, target)
        base = theirs.store.get(merge_base(theirs.store, view.base, theirs).commit, Commit)
        changes, staged_changes = (
            namespaces_by_name(changed_entities(staged.reader.read_shards, base, commit), view)
            for commit in (theirs.commit, view.base.commit)
        )
        is_known = own_branch(theirs)[0] in ancestry_of(view.base).newest  # else it was moved since
        if staged_changes or (not changes and is_known):
            return new_difference(staged, {})
        return new_difference(staged, changes, theirs)._replace(ancestry=ancestry_of(theirs))

    change = MergeStates(staged.context, operation._replace(id=b""), difference, label=f"merge {target}")
    staged.commit(change)
