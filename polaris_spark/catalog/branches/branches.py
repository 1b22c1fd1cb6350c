"""Branches and tags of a catalog: create, list, drop and restore them.

A branch is a reference, a database row that points to a newest commit. A new branch points to a commit of another
branch, so creating it writes a few rows, whatever the size of the catalog. A tag is a reference that accepts no
commits. Its row keeps its commit, and the files that the commit needs, as the row of a branch does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple

from polaris_spark.catalog.branches.merge_base import BeginBranch, Contained
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.property_changes import bind_branch
from polaris_spark.catalog.catalogs.references import head_name, heads_prefix, tag_name, tags_prefix
from polaris_spark.catalog.files.locations import overlapping
from polaris_spark.catalog.rows import IDS, id_bytes
from polaris_spark.commits.as_of import AsOf, pinned
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader, reading_state
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CommitFailedError,
    HistoryTrimmedError,
    NotFoundError,
    ProtectedBranchError,
    ReferenceGoneError,
)
from polaris_spark.names import AREA, MAIN, problem_of_part
from polaris_spark.system.lost_rows import strict_reader
from polaris_spark.system.registrations import Description, Registered, Registration, group_of, name_parts

Kind = Literal["branch", "tag"]

_POINT = "#"
_SEPARATORS = f"@{_POINT}"
"""Characters that separate the name of a table from a branch or time."""


class Branch(NamedTuple):
    """A branch or tag of a catalog that exists."""

    name: str
    head: Head
    """The newest commit of the branch, or the commit of the tag."""
    registration: Registration


def branch_of(catalog: Catalog, name: str) -> CommitReader:
    """Read and return the newest commit of a branch.

    Raises:
        BadRequestError: the name belongs to the state of an open transaction.
        NotFoundError: the catalog has no branch of that name.
    """
    require_stored(catalog, name)
    try:
        return catalog.references.read(head_name(catalog.row, name))
    except ReferenceGoneError as error:
        raise _unknown(catalog, "branch", name) from error


def require_stored(catalog: Catalog, branch: str) -> None:
    """Check that a branch is stored. The state of an open transaction is not, so stored data must not point to it.

    Raises:
        BadRequestError: the name belongs to the state of an open transaction.
    """
    if catalog.references.is_private(head_name(catalog.row, branch)):
        raise BadRequestError(
            f"{branch!r} is the state of a transaction and not a branch; commit the transaction first, and use its "
            "branch"
        )


def has_tag(catalog: Catalog, name: str) -> bool:
    """Whether the catalog has a tag of that name."""
    found = catalog.references.lookup(tag_name(catalog.row, name))
    return found is not None and found.registration.state == "live"


def tag_of(catalog: Catalog, name: str) -> CommitReader:
    """Read and return the commit of a tag.

    Raises:
        NotFoundError: the catalog has no tag of that name.
    """
    try:
        return catalog.references.read(tag_name(catalog.row, name))
    except ReferenceGoneError as error:
        raise _unknown(catalog, "tag", name) from error


def branch_or_tag_of(catalog: Catalog, name: str) -> CommitReader:
    """Read and return the newest commit of a branch, or the commit of a tag.

    Raises:
        NotFoundError: the catalog has neither a branch nor a tag of that name.
    """
    try:
        return branch_of(catalog, name)
    except NotFoundError as no_branch:
        try:
            return tag_of(catalog, name)
        except NotFoundError:
            raise no_branch from None


def branches(catalog: Catalog) -> list[Branch]:
    """Return all branches of a catalog that are not dropped, sorted by name."""
    return _listed(catalog, heads_prefix(catalog.row))


def tags(catalog: Catalog) -> list[Branch]:
    """Return all tags of a catalog that are not dropped, sorted by name."""
    return _listed(catalog, tags_prefix(catalog.row))


def create(
    catalog: Catalog,
    kind: Kind,
    name: str,
    operation: Operation,
    *,
    source: str = MAIN,
    point: str = "",
    comment: str = "",
) -> Branch:
    """Create a branch that begins at a commit of another branch, or at a tag; or create a tag of such a commit.

    Args:
        source: name of the other branch, or of the tag.
        point: the commit, by number, id or time; empty for the newest.
        comment: free text about the branch or tag, for users.
    Raises:
        AlreadyExistsError: a branch or tag of this name exists.
        BadRequestError: no branch or tag can have this name.
        HistoryTrimmedError: the commit is no longer stored.
        InputError: `point` is not a commit of the other branch.
        NotFoundError: the other branch does not exist.
    """
    require_name(kind, name)
    return _create(catalog, kind, name, operation, source, point, comment)


def create_area(catalog: Catalog, name: str, operation: Operation, target: str) -> Branch:
    """Create the branch of a staging area (`catalog.merges.staging`).

    Args:
        target: name of the branch for which changes are staged.
    Raises:
        AlreadyExistsError: the area exists.
        BadRequestError: no area can have this name.
        NotFoundError: the branch does not exist.
    """
    require_name("staging area", name.removeprefix(AREA))
    branch_of(catalog, target)
    return _create(catalog, "branch", name, operation, target, "", "")


def drop_branch(catalog: Catalog, name: str, operation: Operation, *, expected: int | None = None) -> None:
    """Drop a branch. It can be restored until its grace period ends.

    Args:
        expected: id of the newest commit that the branch must have; None for any. If another process commits to the
            branch between this check and the drop, the branch is restored at once and the call fails. If this process
            dies before it restores the branch, the branch stays dropped.
    Raises:
        BadRequestError: the branch is `main`.
        CommitFailedError: the newest commit of the branch is not `expected`.
        NotFoundError: the branch does not exist.
        ProtectedBranchError: the branch is protected.
    """
    if name == MAIN:
        raise BadRequestError(f"the branch {MAIN!r} of catalog {catalog.name!r} cannot be dropped")
    _require_newest(catalog, name, branch_of(catalog, name).head, expected)
    try:
        dropped = catalog.references.drop(head_name(catalog.row, name), operation)
    except ProtectedBranchError as error:
        raise is_protected(name, error) from error
    catalog.opened_branches.discard(name)
    if expected is not None:
        try:
            _require_newest(catalog, name, catalog.references.sealed_head(dropped), expected)
        except CommitFailedError:
            undrop(catalog, "branch", name, operation._replace(id=b""))
            raise


def _require_newest(catalog: Catalog, name: str, head: Head, expected: int | None) -> None:
    if expected not in (None, head.commit):
        raise CommitFailedError(
            f"branch {name!r} of catalog {catalog.name!r} was not dropped: its newest commit has the id "
            f"{head.commit}, not the expected id {expected}"
        )


def drop_tag(catalog: Catalog, name: str, operation: Operation) -> None:
    """Drop a tag. It can be restored until its grace period ends.

    Raises:
        NotFoundError: the tag does not exist.
    """
    tag_of(catalog, name)
    catalog.references.drop(tag_name(catalog.row, name), operation)


def undrop(catalog: Catalog, kind: Kind, name: str, operation: Operation) -> Branch:
    """Restore a dropped branch, with the last commit that it had, or a dropped tag.

    Raises:
        AlreadyExistsError: a tag or branch of this name exists.
        NotFoundError: no dropped branch or tag has this name, or its grace period has ended.
    """
    reference, rival = references_of(catalog, kind, name)
    try:
        restored = catalog.references.undrop(reference, operation, rivals=(rival,))
    except AlreadyExistsError as error:
        raise taken(catalog, name) from error
    except NotFoundError as error:
        raise NotFoundError(
            f"catalog {catalog.name!r} has no dropped {kind} {name!r} that can be restored"
        ) from error
    return _bound(catalog, kind, name, operation, restored)


def references_of(catalog: Catalog, kind: Kind, name: str) -> tuple[str, str]:
    """Return the name of the reference of a branch or tag. Also return the name that the reference would have if the
    branch were a tag, or the tag a branch."""
    names = head_name(catalog.row, name), tag_name(catalog.row, name)
    return names if kind == "branch" else names[::-1]


def other_holders(
    catalog: Catalog, own: str, entity_id: int, locations: frozenset[tuple[str, ...]]
) -> Iterator[Registered]:
    """Yield the branches and tags that may need files of a table, except one branch: those that contain the table, or
    another table or view that uses one of its locations. Yield also dropped ones that can be restored.

    Args:
        own: name of the branch that is left out.
        entity_id: entity id of the table, which is the same in all branches and tags.
        locations: the locations that the table uses, as path segments.
    Raises:
        CorruptionError: a branch or tag cannot be read, or its row was lost.
    """
    references, left_out = catalog.references, head_name(catalog.row, own)
    reader = strict_reader(references.store, references.clock)
    for registered in reader.listed():
        name = registered.name
        if name_parts(name) is None or group_of(name) != group_of(left_out) or name == left_out:
            continue
        head = reader.head_of(registered)
        if head.given_up:  # since the registry was read
            continue
        state = reading_state(reader.open(head))
        if state.lookup(IDS, id_bytes(entity_id)) or any(overlapping(state, one) for one in locations):
            yield registered


def _bound(catalog: Catalog, kind: Kind, name: str, operation: Operation, made: Registered) -> Branch:
    """Complete a branch or tag that was just created or restored, and return it. A branch gets a copy of the catalog's
    properties, if it needs one."""
    if kind == "branch":
        reference = head_name(catalog.row, name)
        bind_branch(catalog.references, catalog.context, operation._replace(id=b""), catalog.row, reference)
    return Branch(name, made.first_head(), made.registration)


def _listed(catalog: Catalog, prefix: str) -> list[Branch]:
    found = []
    for name, registered in _registered(catalog, prefix).items():
        try:
            head = catalog.references.read(registered.name).head
        except ReferenceGoneError:  # dropped since it was listed
            continue
        found.append(Branch(name, head, registered.registration))
    return found


def _registered(catalog: Catalog, prefix: str) -> dict[str, Registered]:
    """Return the live references whose names begin with `prefix`, by the rest of their names."""
    listed = catalog.references.listed()
    if any(one.registration.renaming for one in listed):
        catalog.references.complete_renames(prefix)
        listed = catalog.references.listed()
    live = [one for one in listed if one.registration.state == "live"]
    return {one.name.removeprefix(prefix): one for one in live if one.name.startswith(prefix)}


def _create(
    catalog: Catalog, kind: Kind, name: str, operation: Operation, source: str, point: str, comment: str
) -> Branch:
    begin = _source(catalog, source, point)
    description = Description(operation.principal, comment, f"{source}#{point}" if point else source)
    reference, rival = references_of(catalog, kind, name)
    register = partial(
        catalog.references.create,
        reference,
        operation,
        description=description,
        rivals=(rival,),
        first=_begin if kind == "branch" else None,
    )
    try:
        try:
            made = register(source=begin)
        except HistoryTrimmedError:
            if point:
                raise
            # Since the newest commit was read, the branch has got others, and the history before them was trimmed.
            made = register(source=_source(catalog, source, point))
    except AlreadyExistsError as error:
        raise taken(catalog, name) from error
    return _bound(catalog, kind, name, operation, made)


def _source(catalog: Catalog, name: str, point: str) -> CommitReader:
    """Return the newest commit of a branch or tag or, if `point` is not empty, the commit at this point of its
    history."""
    try:
        newest = branch_or_tag_of(catalog, name)
    except NotFoundError as error:
        if _POINT not in name:
            raise
        raise NotFoundError(f"{error}; give the commit in 'at'") from error
    if not point:
        return newest
    head = pinned(newest.store, newest.head, AsOf.parse(point, "at"))
    commit = newest.store.get(head.commit, Commit)
    return CommitReader(newest.store, newest.version, head, commit, row_name=newest.row_name)


def _begin(id: int, source: Head) -> BeginBranch:
    return BeginBranch(id, Contained(source.number, source.commit))


def require_name(kind: str, name: str) -> None:
    """Check that a name is allowed for a new branch or tag.

    Raises:
        BadRequestError: the name is not allowed.
    """
    problem = problem_of_part(name)
    if problem is None and any(one in name for one in _SEPARATORS):
        problem = "contains '@' or '#', which separate the names of tables from branches and times"
    if problem is None and name.startswith(AREA):
        problem = f"begins with {AREA!r}, as the names of staging areas do"
    if problem is not None:
        raise BadRequestError(f"{name[:200]!a} cannot be the name of a {kind}: the name {problem}")


def taken(catalog: Catalog, name: str) -> AlreadyExistsError:
    """Return the error to raise because a branch or tag of the catalog already has this name."""
    kind = "tag" if name in _registered(catalog, tags_prefix(catalog.row)) else "branch"
    return AlreadyExistsError(f"catalog {catalog.name!r} already has a {kind} {name!r}")


def is_protected(name: str, error: ProtectedBranchError) -> ProtectedBranchError:
    """Return the error to raise because a branch is protected, given the error that its reference raised."""
    return ProtectedBranchError(f"branch {name!r} is protected: {error}; call unprotect_branch first")


def _unknown(catalog: Catalog, kind: str, name: str) -> NotFoundError:
    prefix, plural = (heads_prefix, "branches") if kind == "branch" else (tags_prefix, "tags")
    known = ", ".join(repr(one) for one in _registered(catalog, prefix(catalog.row))) or "none"
    return NotFoundError(f"catalog {catalog.name!r} has no {kind} {name[:80]!r}; its {plural} are: {known}")
