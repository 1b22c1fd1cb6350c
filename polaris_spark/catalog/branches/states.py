"""Resolves a text to a state of a catalog: a branch, a tag, a commit or time of a branch's history, or a branch and a
commit or time.

| text | state |
| --- | --- |
| `dev` | the newest state of the branch `dev` |
| `v1` | the state that the tag `v1` keeps |
| `dev#17`, `dev#2026-11-23T00:00:00Z` | the branch `dev` as of a commit or time (`commits.as_of`) |
| `17`, `2026-11-23T00:00:00Z` | the session's branch as of a commit or time |

A text can be the name of a branch or tag and also a commit or time. Then it is resolved to the branch or tag, except in
the property `as-of`: there, it is resolved to the commit or time, for which the property is intended
(`catalog_as_of`).
"""

from __future__ import annotations

from polaris_spark.catalog.branches.branches import branch_of, has_tag, tag_of
from polaris_spark.catalog.branches.protection import complete_protection
from polaris_spark.catalog.catalogs.catalog import Catalog, transaction_ended
from polaris_spark.catalog.catalogs.catalogs import require_branch
from polaris_spark.catalog.catalogs.property_changes import complete_copy
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.commits.as_of import AsOf, lacks_zone
from polaris_spark.commits.change import Operation
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import InputError, NotFoundError, StateError
from polaris_spark.names import is_transaction

STATE = "@"
"""Separates the name of a catalog, in a prefix or warehouse, or of a table or view from a state."""

POINT = "#"
"""Separates a branch from a commit or time."""


def catalog_at(catalog: Catalog, text: str) -> Catalog:
    """Return a copy of a catalog that shows the state that a text names. If the text names a branch, the branch can be
    changed through the copy. Other states cannot be changed.

    Raises:
        NotFoundError: the text does not name a state. This error is not raised for a branch that was dropped after this
            process opened it. Reading the copy then raises ReferenceGoneError.
        ForbiddenError: the catalog is configured to show one fixed state of the past.
        StateError: the commit or time is not in the history that is still stored.
    """
    branch, separator, point = text.partition(POINT)
    if not catalog.bound:
        catalog = catalog.on_branch(catalog.branch)
    if separator:
        return _as_of(_of_point(catalog, branch, point), point, text)
    if text == catalog.branch:
        return catalog
    try:
        return _on_branch(catalog, text)
    except NotFoundError as no_branch:
        tag = _tagged(catalog, text)
        if tag is not None:
            return tag
        try:
            AsOf.parse(text, "state")
        except InputError as error:
            if lacks_zone(text):
                raise NotFoundError(str(error)) from None
            raise NotFoundError(
                f"{text[:80]!r} is neither a tag nor a commit nor a time, and {no_branch}"
            ) from None
    return _as_of(catalog, text, text)


def catalog_as_of(catalog: Catalog, text: str) -> Catalog:
    """Return a copy of a catalog that shows a point in the history of its branch, a tag, or the present state of
    another branch, and cannot be changed.

    Raises:
        HistoryTrimmedError: the point is older than the oldest commit that is still stored.
        BeforeHistoryError: the point is a time before the first commit.
        InputError: the text is not a commit of this history, and not the name of a tag or branch.
    """
    try:
        return catalog.as_of(AsOf.parse(text))
    except InputError as error:
        tag = _tagged(catalog, text)
        if tag is not None:
            return tag
        try:
            head = branch_of(catalog, text)
        except NotFoundError:
            if not AsOf.parse(text, names=True).name or lacks_zone(text):
                raise error from None
            raise InputError(f"{error}, or the name of a tag or branch that exists") from None
        # Grants and owners are those of this branch.
        return catalog.on_branch(text).at(head, text)


def _tagged(catalog: Catalog, name: str) -> Catalog | None:
    """Return a copy of a catalog that shows a tag; None if the tag does not exist."""
    try:
        found = catalog.at(tag_of(catalog, name), name)
    except NotFoundError:
        return None
    catalog.require_choice(name)
    found.tagged = True
    return found


def name_of_state(catalog: Catalog) -> str:
    """Return the text that names the state that a catalog object shows: a tag, a branch, or a branch and a point of its
    history."""
    if catalog.tagged:
        return catalog.point
    return f"{catalog.branch}{POINT}{catalog.point}" if catalog.point else catalog.branch


def reader_at(catalog: Catalog, text: str) -> CommitReader:
    """Return the commit of the state that a text names. The errors are those of `catalog_at`."""
    return catalog_at(catalog, text).head()


def _on_branch(catalog: Catalog, branch: str) -> Catalog:
    if branch in catalog.opened_branches:
        return catalog.on_branch(branch)
    if is_transaction(branch):
        raise NotFoundError(transaction_ended(branch))
    require_branch(catalog.references, catalog.row, branch)
    head = branch_of(catalog, branch)
    operation = Operation(b"", catalog.row.owner)
    name = head_name(catalog.row, branch)
    complete_copy(catalog.references, catalog.context, operation, catalog.row, head, name)
    complete_protection(catalog.references, catalog.context, operation, catalog.row, head, name)
    catalog.opened_branches.add(branch)
    return catalog.on_branch(branch)


def _of_point(catalog: Catalog, branch: str, point: str) -> Catalog:
    """Return a copy of a catalog that shows the branch in the text `<branch>#<point>`."""
    if branch == catalog.branch:
        return catalog
    try:
        return _on_branch(catalog, branch)
    except NotFoundError as error:
        if not has_tag(catalog, branch):
            raise
        raise NotFoundError(
            f"{branch!r} is a tag, which is one commit; leave out {POINT + point[:80]!r}"
        ) from error


def _as_of(catalog: Catalog, point: str, text: str) -> Catalog:
    try:
        return catalog.as_of(AsOf.parse(point, "state"))
    except (InputError, StateError) as error:
        raise NotFoundError(
            f"there is no state {text[:80]!r} of catalog {catalog.name!r}: {error}"
        ) from error
