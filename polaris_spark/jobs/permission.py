"""Check whether a caller may call a procedure, in a realm with access control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from polaris_spark.access import securables
from polaris_spark.access.needs import Asked, Need, Needs, On
from polaris_spark.access.places import base_of
from polaris_spark.catalog.branches.branches import branch_of, has_tag
from polaris_spark.catalog.branches.states import catalog_at, name_of_state
from polaris_spark.catalog.rows import NAMESPACE, TABLE, VIEW
from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.names import AREA
from polaris_spark.rest.permissions import NOTHING_ASKED, Named, Permissions, check

if TYPE_CHECKING:
    from polaris_spark.rest.session import Session


def require_needs(
    session: Session, needs: Needs, arguments: Mapping[str, Any], *, rotating: bool = False
) -> dict[bytes, int]:
    """Refuse a call of a procedure that a session's principal may not make. In a realm without access control, do
    nothing.

    Args:
        needs: what the procedure needs.
        arguments: the checked arguments of the call.
        rotating: whether a principal that must rotate its credentials may call the procedure.
    Returns:
        the names that were checked: keys in the index `names`, with the entity ids that they have
        (`Catalog.resolving`).
    Raises:
        NotAuthorizedError: the principal is not active.
        ForbiddenError: the principal lacks a privilege.
        NotFoundError: the principal may not see what an argument names, or a state that an argument names does not
            exist.
    """
    permissions = session.permissions(rotating=rotating)
    if permissions is None:
        return {}
    for need in needs:
        if need.when is None or need.when.holds(Asked({}, {}, arguments)):
            _require(permissions, need, arguments)
    permissions.note()
    return dict(permissions.resolved)


def _require(permissions: Permissions, need: Need, arguments: Mapping[str, Any]) -> None:
    catalog = permissions.catalog
    given = arguments.get(need.parameter) if need.parameter else None
    if need.on is On.STATE and given is not None:
        _require_on_state(permissions, need, str(given), arguments)
    elif need.on in (On.BRANCH, On.AREA) and given is not None:
        id = catalog.row.entity_id
        given = str(given) if need.on is On.BRANCH else f"{AREA}{given}"
        whole = (securables.catalog(id), securables.REALM)
        # A tag may have the name of a dropped branch, whose grants do not hold for it.
        chain = whole if has_tag(catalog, given) else (securables.branch(id, given), *whole)
        permissions.require_base(need.privilege, chain, f"branch {given}")
    elif need.on in (On.BRANCH, On.STATE):
        permissions.require_base(need.privilege, base_of(catalog), f"branch {catalog.branch}")
    elif need.on in _OF_NAMES:
        _require_named(permissions, need, given)
    else:
        check(permissions, (need._replace(when=None),), NOTHING_ASKED)


def _require_on_state(permissions: Permissions, need: Need, given: str, arguments: Mapping[str, Any]) -> None:
    """Check a privilege on the branch whose state an argument names. The name of the state alone does not tell the
    branch: `17` can be a commit of the session's branch, or a branch or tag of this name."""
    catalog = permissions.catalog
    if need.of:
        branch = str(arguments[need.of])
        branch_of(catalog, branch)  # raises an error if it does not exist
        catalog = catalog.on_branch(branch)
    state = catalog_at(catalog, given)
    described = f"tag {name_of_state(state)}" if state.tagged else f"branch {state.branch}"
    permissions.require_base(need.privilege, base_of(state), described)


_OF_NAMES: Mapping[On, bytes] = {
    On.TABLE: TABLE,
    On.VIEW: VIEW,
    On.NAMESPACE: NAMESPACE,
    On.DESTINATION: NAMESPACE,
}


def _require_named(permissions: Permissions, need: Need, given: Any) -> None:
    """Check that the principal has a needed privilege on what an argument names; on the whole branch, if the argument
    is left out.

    A table and a view cannot have the same name. So if the name belongs to a view, a need on a table applies to the
    view.
    """
    if given is None:
        catalog = permissions.catalog
        permissions.require_base(need.privilege, base_of(catalog), f"branch {catalog.branch}")
        return
    what: Literal["table", "namespace"] = "namespace" if need.on is On.NAMESPACE else "table"
    for text in given if isinstance(given, (list, tuple)) else (given,):
        levels = levels_named(permissions.head, permissions.catalog.name, what, str(text))
        if need.on is On.NAMESPACE:
            permissions.require(need.privilege, Named(levels))
        elif need.on is On.DESTINATION:  # the namespace of a new table or view
            permissions.require(need.privilege, Named(levels[:-1]))
        else:
            permissions.require(need.privilege, Named(levels[:-1], levels[-1], _OF_NAMES[need.on]))
