"""Changes to existing branches and tags: rename, move to another commit, protect, and change owner and comment.

Only merges, reverts and cherry-picks may change the content of a protected branch. A protected branch cannot be
dropped, renamed or moved. Its registration and its commits record that it is protected (`protection`).

Two kinds of changes may be committed to a protected branch (`Change.onto_protected`):

- merges, reverts and cherry-picks, because they apply the difference of two states and evaluate the branch's checks;
- changes that do not change what the branch contains: the copy of the catalog's properties; expiry of snapshots and the
  record of deleted files; loads of lazily imported tables; compaction of indexes.

All other changes are refused, among them refreshes of materialized views, transactions and `undrop`. Protection does
not affect trimming and fencing, which change the row of the branch and make no commit. It does not affect the reports
of scans and commits either, which have their own reference.
"""

from __future__ import annotations

from collections.abc import Mapping

from polaris_spark.catalog.branches.branches import (
    Branch,
    Kind,
    branch_of,
    is_protected,
    references_of,
    require_name,
    require_stored,
    tag_of,
    taken,
)
from polaris_spark.catalog.branches.merge_base import CHECKS, BeginBranch, Contained
from polaris_spark.catalog.branches.protection import CopyProtection
from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.catalogs import catalog_key
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import Head, LogEntry
from polaris_spark.commits.settings import PROTECTION
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CommitFailedError,
    NotFoundError,
    ProtectedBranchError,
)
from polaris_spark.names import AREA, MAIN


def rename(catalog: Catalog, kind: Kind, name: str, to: str, operation: Operation) -> Branch:
    """Rename a branch or tag. Its commits stay as they are; a process that has the branch open gets an error.

    Raises:
        AlreadyExistsError: a branch or tag has the new name.
        BadRequestError: the branch is `main`, or no branch or tag can have the new name.
        NotFoundError: the branch or tag does not exist.
        ProtectedBranchError: the branch is protected.
    """
    if kind == "branch" and name == MAIN:
        raise BadRequestError(f"the branch {MAIN!r} of catalog {catalog.name!r} cannot be renamed")
    require_name(kind, to)
    before = _existing(catalog, kind, name)
    after, rival = references_of(catalog, kind, to)
    try:
        renamed = catalog.references.rename(before, after, operation, rivals=(rival,))
    except AlreadyExistsError as error:
        raise taken(catalog, to) from error
    except ProtectedBranchError as error:
        raise is_protected(name, error) from error
    if kind == "branch":
        catalog.opened_branches.discard(name)
    return Branch(to, renamed.first_head(), renamed.registration)


def was_renamed(catalog: Catalog, name: str, to: str) -> Branch | None:
    """Return the branch that has the name `to`, if it got this name by a rename from `name`; else None."""
    reference = head_name(catalog.row, to)
    found = catalog.references.lookup(reference)
    if found is None or found.registration.state != "live":
        return None
    if found.registration.renamed.rpartition("@")[0] != head_name(catalog.row, name):
        return None
    return _present(catalog, to, reference)


def reassign_branch(
    catalog: Catalog, name: str, to: str, operation: Operation, *, expected: str = ""
) -> Branch:
    """Move a branch to another commit. The commits that it had are no longer in its history.

    Args:
        to: the state to move to (`catalog.branches.states`): another branch, a tag, or a commit or time of this branch.
        expected: number or id of the newest commit that the branch must have; empty for any.
    Raises:
        BadRequestError: the state belongs to an open transaction.
        CommitFailedError: the newest commit of the branch is not `expected`, or the branch got a new commit meanwhile.
        NotFoundError: the branch or the state does not exist.
        ProtectedBranchError: the branch is protected.
    """
    present, reference = branch_of(catalog, name), head_name(catalog.row, name)
    before = present.head
    wrong = f"branch {name!r} of catalog {catalog.name!r} was not moved"
    if expected and expected not in (str(before.number), str(before.commit), f"{before.commit:x}"):
        raise CommitFailedError(
            f"{wrong}: it is at commit number {before.number} (id {before.commit}), not at the expected commit "
            f"{expected!r}"
        )
    state = catalog_at(catalog.on_branch(name), to)
    require_stored(catalog, state.branch)
    target = state.head()
    begin = Contained(target.head.number, target.head.commit)
    entry = LogEntry(
        b"",
        operation.principal,
        catalog.context.clock.now_ms(),
        "reassign-branch",
        catalog.row.entity_id,
        catalog_key(catalog.name),
        summary={
            "from": f"commit {before.number} ({before.commit:x})",
            "to": f"commit {begin.number} ({begin.commit:x})",
            **dict(operation.notes),
        },
    )
    checks = {key: value for key, value in present.index(PROTECTION).range() if key.startswith(CHECKS)}

    def first(id: int, _: Head) -> BeginBranch:
        return BeginBranch(id, begin, entry, checks)

    try:
        catalog.references.move(reference, target, expected=before.commit, first=first)
    except CommitFailedError as error:
        raise CommitFailedError(f"{wrong}: {error}") from error
    except ProtectedBranchError as error:
        raise is_protected(name, error) from error
    return _present(catalog, name, reference)


def protect_branch(catalog: Catalog, name: str, operation: Operation, *, protected: bool = True) -> Branch:
    """Protect a branch, or end its protection. When this function returns, the change is in effect in all processes.

    Raises:
        BadRequestError: the branch is a staging area.
        NotFoundError: the branch does not exist.
    """
    if protected and name.startswith(AREA):
        raise BadRequestError(
            f"{name!r} is a staging area, which cannot be protected; protect its branch instead"
        )
    branch_of(catalog, name)
    reference = head_name(catalog.row, name)
    catalog.references.alter(reference, operation, {"protected": protected})
    catalog.references.commit(
        reference,
        CopyProtection(catalog.context, operation, catalog.row, catalog.references, reference),
    )
    return _present(catalog, name, reference)


def alter(
    catalog: Catalog, kind: Kind, name: str, operation: Operation, changes: Mapping[str, str | int]
) -> Branch:
    """Change the owner or the comment of a branch or tag, or how long the history of a branch is kept.

    Args:
        changes: the new `owner`, `comment`, `keep_ms` and `keep_commits`; a field that is missing is not changed.
    Raises:
        NotFoundError: the branch or tag does not exist.
    """
    reference = _existing(catalog, kind, name)
    catalog.references.alter(reference, operation, changes)
    return _present(catalog, name, reference)


def _existing(catalog: Catalog, kind: Kind, name: str) -> str:
    """Return the name of the reference of a branch or tag, which must exist."""
    _ = branch_of(catalog, name) if kind == "branch" else tag_of(catalog, name)
    return references_of(catalog, kind, name)[0]


def _present(catalog: Catalog, name: str, reference: str) -> Branch:
    head, found = catalog.references.read(reference).head, catalog.references.lookup(reference)
    if found is None:
        raise NotFoundError(f"catalog {catalog.name!r} no longer has a branch or tag {name!r}")
    return Branch(name, head, found.registration)
