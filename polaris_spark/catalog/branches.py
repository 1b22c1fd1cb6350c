"""Branches of a catalog: create, drop and restore them.

A branch is a reference, a database row that points to a newest commit. A new branch points to a commit of another
branch, so it costs one row, however large the catalog is.
"""

from __future__ import annotations

from typing import NamedTuple

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.merge_base import BeginBranch, Contained
from polaris_spark.catalog.property_changes import bind_branch
from polaris_spark.catalog.references import head_name, heads_prefix
from polaris_spark.commits.as_of import AsOf, pinned
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    NotFoundError,
    ReferenceGoneError,
)
from polaris_spark.names import MAIN, problem_of_part, transaction_end_ms

_SEPARATORS = "@#"
"""Characters that separate the name of a table from a branch or time."""


class Branch(NamedTuple):
    """A branch of a catalog that exists."""

    name: str
    head: Head


def branch_of(catalog: Catalog, name: str) -> CommitReader:
    """Read and return the newest commit of a branch.

    Raises:
        NotFoundError: the catalog has no branch of that name.
    """
    try:
        return catalog.references.read(head_name(catalog.row, name))
    except ReferenceGoneError as error:
        known = ", ".join(repr(one) for one in names_of(catalog))
        raise NotFoundError(
            f"catalog {catalog.name!r} has no branch {name!r}; its branches are: {known}"
        ) from error


def names_of(catalog: Catalog) -> list[str]:
    """Return the names of all branches of a catalog that are not dropped, in their order, without those of
    transactions."""
    prefix = heads_prefix(catalog.row)
    live = [one.name for one in catalog.references.listed() if one.registration.state == "live"]
    names = [name.removeprefix(prefix) for name in live if name.startswith(prefix)]
    return [name for name in names if transaction_end_ms(name) is None]


def branches(catalog: Catalog) -> list[Branch]:
    """Return all branches of a catalog that are not dropped, in the order of their names."""
    found = []
    for name in names_of(catalog):
        try:
            found.append(Branch(name, branch_of(catalog, name).head))
        except NotFoundError:  # dropped since it was listed
            continue
    return found


def create_branch(
    catalog: Catalog, name: str, operation: Operation, *, source: str = MAIN, point: str = ""
) -> Branch:
    """Create a branch that begins at a commit of another branch.

    Args:
        source: name of the other branch.
        point: the commit, by number, id or time; empty for the newest.
    Raises:
        AlreadyExistsError: the branch exists.
        BadRequestError: no branch can have this name.
        HistoryTrimmedError: the commit is no longer stored.
        InputError: `point` is not a commit of the other branch.
        NotFoundError: the other branch does not exist.
    """
    problem = problem_of_part(name)
    if problem is None and any(one in name for one in _SEPARATORS):
        problem = "contains '@' or '#', which separate the names of tables from branches and times"
    if problem is not None:
        raise BadRequestError(f"the name of a branch {name[:200]!a} {problem}")
    newest = branch_of(catalog, source)
    begin = newest
    if point:
        head = pinned(newest.store, newest.head, AsOf.parse(point, "at"))
        commit = newest.store.get(head.commit, Commit)
        begin = CommitReader(newest.store, newest.version, head, commit, row_name=newest.row_name)
    reference = head_name(catalog.row, name)
    try:
        registered = catalog.references.create(reference, operation, source=begin)
    except AlreadyExistsError as error:
        raise AlreadyExistsError(f"catalog {catalog.name!r} already has a branch {name!r}") from error
    source_commit = Contained(registered.registration.number, registered.source)
    catalog.references.commit(reference, BeginBranch(registered.registration.generation, source_commit))
    bind_branch(catalog.references, catalog.context, operation._replace(id=b""), catalog.row, reference)
    return Branch(name, registered.first_head())


def drop_branch(catalog: Catalog, name: str, operation: Operation) -> None:
    """Drop a branch. It can be restored until its grace period ends.

    Raises:
        BadRequestError: it is the branch main.
        NotFoundError: the branch does not exist.
    """
    if name == MAIN:
        raise BadRequestError(f"the branch {MAIN!r} of catalog {catalog.name!r} cannot be dropped")
    branch_of(catalog, name)
    catalog.references.drop(head_name(catalog.row, name), operation)


def undrop_branch(catalog: Catalog, name: str, operation: Operation) -> Branch:
    """Restore a dropped branch with its last commit.

    Raises:
        NotFoundError: no dropped branch has this name, or its grace period has ended.
    """
    reference = head_name(catalog.row, name)
    try:
        registered = catalog.references.undrop(reference, operation)
    except NotFoundError as error:
        raise NotFoundError(
            f"catalog {catalog.name!r} has no dropped branch {name!r} that can be restored"
        ) from error
    bind_branch(catalog.references, catalog.context, operation._replace(id=b""), catalog.row, reference)
    return Branch(name, registered.first_head())
