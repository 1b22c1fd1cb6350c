"""Whether the owner of a materialized view may read what its query reads, in a realm with access control.

A refresh runs with the rights of the session that calls it, which may be those of an administrator or of a job. Without
this check, a principal that may change the query could read hidden tables: the refresh would store their rows in the
view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from polaris_spark.access import securables
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.errors import BadRequestError, ForbiddenError, NotAuthorizedError
from polaris_spark.rest.permissions import Named, Permissions

if TYPE_CHECKING:
    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.catalog.materialized.view_sources import PinnedQuery
    from polaris_spark.rest.session import Session


def require_owner_reads(session: Session, name: TableName, query: Callable[[], PinnedQuery]) -> None:
    """Refuse the refresh of a materialized view whose owner may not read a source of its query. Views without an owner,
    and those of the session's principal, are not checked: the session's own rights then decide.

    Args:
        name: name of the materialized view.
        query: returns the pinned query, in which the stored rows of other materialized views are read.
    Raises:
        ForbiddenError: the owner is not active, or lacks a privilege; the message names it.
    """
    caller = session.permissions()
    if caller is None:
        return
    owner = caller.owners(caller.place(Named(name.namespace, name.name, VIEW)))[0]
    if owner in (None, caller.subject.name):
        return
    advice = "give the view to another owner by set_owner"
    try:
        subject = caller.rules.subject(str(owner), session.connection.clock.now_ms(), rotating=True)
    except NotAuthorizedError as error:
        raise ForbiddenError(f"view {name} cannot be refreshed: its owner: {error}; {advice}") from error
    permissions = Permissions(caller.rules, subject, caller.catalog, caller.head, caller.newest)
    missing = _missing(permissions, query())
    if missing is not None:
        raise ForbiddenError(
            f"view {name} cannot be refreshed: its owner {owner!r} needs the privilege {missing[0]} on {missing[1]}; "
            f"grant it, or {advice}"
        )


def read_for_caller(session: Session, name: TableName, query: Callable[[], PinnedQuery]) -> PinnedQuery:
    """Return the query of a materialized view, if the caller may read everything that it reads.

    Args:
        name: name of the materialized view.
        query: returns the pinned query.
    Raises:
        ForbiddenError: the caller may not read all of this. The message does not reveal whether the named tables and
            views exist.
    """
    caller = session.permissions()
    if caller is None:
        return query()
    needed = ForbiddenError(
        f"principal {caller.subject.name!r} needs the privilege to read all tables and views that the query of view "
        f"{name} reads"
    )
    whole = (securables.catalog(caller.catalog.row.entity_id), securables.REALM)
    try:
        found = query()
    except BadRequestError as error:
        raise error if caller.holds("TABLE_READ_DATA", whole) else needed from None
    if _missing(caller, found) is not None:
        raise needed
    return found


def _missing(permissions: Permissions, query: PinnedQuery) -> tuple[str, str] | None:
    """Return a privilege that a principal lacks to read what a query reads, and on what; None if it lacks none."""
    for privilege, found, kind in _sources(query):
        if found is None:
            allowed = permissions.holds(privilege, (securables.REALM,))
            described = "the realm, because the query reads what is not in this catalog"
        else:
            named = Named(found.namespace, found.name, kind)
            allowed, described = permissions.may(privilege, permissions.place(named)), named.described
        if not allowed:
            return privilege, described
    return None


def _sources(query: PinnedQuery) -> list[tuple[str, TableName | None, bytes]]:
    """Return what a query reads: the needed privilege, the name (None if it is not in this catalog), and the kind."""
    from polaris_spark.catalog.materialized.outside_sources import METASTORE

    tables = [
        ("TABLE_READ_DATA", None if one.catalog or one.type != METASTORE else one.name, TABLE)
        for one in query.tables
        if one.read
    ]
    views = [
        ("VIEW_READ_PROPERTIES", None if one.catalog else one.name, VIEW) for one in query.views if one.read
    ]
    return tables + views
