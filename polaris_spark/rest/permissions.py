"""Checks of what a caller may do in one state of a catalog, in a realm with access control.

A name that the caller may not see gets the same answer as a name that does not exist. A caller sees a table or view if
it has a table or view privilege on it or on anything above it. It also sees each namespace that contains something on
which it has a privilege.

If the realm has an authorizer (`access.authorizers`), it is asked instead. It is asked about the names that entities
have in the newest commit of the branch, or in the state of the request if they do not exist there any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from polaris_spark.access import securables
from polaris_spark.access.authorizers import Securable
from polaris_spark.access.decisions import Delegated
from polaris_spark.access.delegated_scopes import KINDS, LISTS, named_in
from polaris_spark.access.needs import REFERENCED_BY, Asked, Need, Needs, On
from polaris_spark.access.places import Place, base_of, owners_of, place_of, place_of_id
from polaris_spark.access.privileges import SEES_NAMESPACE, SEES_TABLE, SEES_VIEW
from polaris_spark.access.rules import Rules, Subject
from polaris_spark.access.scopes import paths_to
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import NamespaceName, TableName, namespace_in, parent_in
from polaris_spark.catalog.materialized.view_chains import definer_of, refused, views_in
from polaris_spark.catalog.merges.transactions import Needed, Transaction, note_needs
from polaris_spark.catalog.rows import IDS, NAMESPACE, TABLE, VIEW, CatalogRow, id_bytes
from polaris_spark.commits.state import CommitReader, reading_state
from polaris_spark.errors import (
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    NotAuthorizedError,
    NotFoundError,
    PolarisError,
)
from polaris_spark.index.keys import decode_key
from polaris_spark.names import MAIN, is_transaction

NOTHING_ASKED = Asked({}, {}, None)

_SEES = {NAMESPACE: SEES_NAMESPACE, TABLE: SEES_TABLE, VIEW: SEES_VIEW}


class Named(NamedTuple):
    """A namespace, table or view that a request names."""

    namespace: NamespaceName
    name: str = ""
    kind: bytes = NAMESPACE

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name)) if self.name else ".".join(self.namespace)

    @property
    def described(self) -> str:
        """The kind and the name, such as `table db.t`."""
        return f"{KINDS[self.kind]} {self}" if self.namespace else "the catalog"

    def missing(self) -> PolarisError:
        """Return the error for a name that does not exist. The routes raise the same error."""
        if self.kind == NAMESPACE:
            return NoSuchNamespaceError(f"Namespace does not exist: {self}")
        if self.kind == TABLE:
            return NoSuchTableError(f"Table does not exist: {self}")
        return NoSuchViewError(f"View does not exist: {self}")


class Permissions:
    """What a principal may do in one state of a catalog."""

    def __init__(
        self, rules: Rules, subject: Subject, catalog: Catalog, head: CommitReader, newest: CommitReader
    ) -> None:
        """
        Args:
            catalog: the catalog in the state of the request.
            head: the commit of this state.
            newest: the newest commit of the branch, which determines the owners.
        """
        self.rules = rules
        self.subject = subject
        self.catalog = catalog
        self.head = head
        self.newest = newest
        self._ways: set[tuple[str, ...]] | None = None
        self.resolved: list[tuple[bytes, int]] = []
        """Keys in the index `names` that were looked up, with the entity ids that were found."""
        self.needed: list[Needed] = []
        """The privileges that were required, and that the principal has."""

    def place(self, named: Named) -> Place:
        """Return the securables and entities that a name refers to. Record the names that were found in `resolved`,
        with their entity ids: a change is refused if one of them refers to another entity when the change is
        committed."""
        found = place_of(self.catalog, self.head, *named)
        self.resolved += [(key, id) for key, id in found.named if id is not None]
        return found

    def may(self, privilege: str, place: Place) -> bool:
        """Whether the principal holds a privilege on a place or on anything above it, or owns one of these."""
        delegated = self.subject.delegated
        if delegated is not None:
            return self._delegated(delegated, privilege, place)
        if self.subject.may(privilege, place.chain):
            return True
        if place.view is not None and _of_storage(privilege):
            above = place.chain[place.chain.index(self._entity(place.view)) :]
            if self.subject.may("VIEW_READ_PROPERTIES", above):
                return True
        return self.owns(privilege, place)

    def _delegated(self, delegated: Delegated, privilege: str, place: Place) -> bool:
        """Whether the authorizer gives the principal a privilege on a place."""
        if not place.chain:
            return False
        securable = self._securable(place.entities, place.chain)
        is_read_by_view = place.view is not None and _of_storage(privilege)
        if is_read_by_view and delegated.may("VIEW_READ_PROPERTIES", securable):
            return True
        return delegated.may(LISTS.get(privilege, privilege), securable)

    def _securable(self, entities: Sequence[int], chain: Sequence[bytes], *listed: CommitReader) -> Securable:
        """Return the names of the first of the entities that exists. If none exists, return the names of the branch,
        catalog or realm in the chain.

        Args:
            listed: the commit that a list shows, if it shows one.
        """
        base = next(one for one in chain if securables.entity_of(one) is None)
        branch, catalog = securables.branch_of(base) or "", self.catalog.row
        for id in entities:
            found = named_in((self.newest, self.head, *listed), catalog.name, branch, id)
            if found is not None:
                return found
        if base == securables.REALM:
            return Securable("realm")
        if securables.catalog_of(base) != catalog.entity_id:
            raise ForbiddenError("only a session of the catalog can use privileges on it")
        return Securable("branch" if branch else "catalog", catalog.name, branch)

    def holds(self, privilege: str, chain: Sequence[bytes]) -> bool:
        """Whether the principal's roles hold a privilege on a branch, the catalog or the realm, or on one above it."""
        if self.subject.delegated is not None:
            return self.subject.delegated.may(privilege, self._securable((), chain))
        return self.subject.may(privilege, chain)

    def owns(self, privilege: str, place: Place) -> bool:
        """Whether the principal has a privilege because it owns a place or something above it."""
        if self.subject.delegated is not None:
            return False
        name = self.subject.name
        if name in self.owners(place):
            return True
        return self.rules.owns(name, privilege, place.chain)

    def owners(self, place: Place) -> list[str | None]:
        """Return the owners of the namespaces, tables and views of a place, the lowest first; None for no owner."""
        return owners_of(self.newest, place.entities)

    def sees(self, named: Named, place: Place) -> bool:
        """Whether the principal may know that an entity with this name exists."""
        if not place.exists and place.view is None:
            return False
        if self.may(_SEES[named.kind], place):
            return True
        return named.kind == NAMESPACE and named.namespace in self.ways

    @property
    def ways(self) -> set[tuple[str, ...]]:
        """The namespaces that lead to all entities on which the principal's roles hold a privilege: the namespaces that
        contain such an entity, at every level, and the entity itself if it is a namespace."""
        if self._ways is None:
            self._ways = paths_to(self.head, self.subject.entities(self.catalog.row.entity_id))
        return self._ways

    def keep(self, reader: CommitReader, listed: Sequence[tuple[bytes, int]]) -> list[bool]:
        """Return which of the children of a namespace the principal may see.

        Args:
            reader: the commit that is listed.
            listed: keys in the index `names`, with the entity ids.
        """
        if self.subject.delegated is not None:
            return self._keep_delegated(self.subject.delegated, reader, listed)
        found = []
        owners = owners_of(self.newest, [id for _, id in listed])
        for (key, id), owner in zip(listed, owners, strict=True):
            path, kind, name = decode_key(key)
            own = self.subject.held.get(self._entity(id), ())
            on_the_way = kind == NAMESPACE and (*path, name) in self.ways
            found.append(_SEES[kind] in own or owner == self.subject.name or on_the_way)
        return found

    def _keep_delegated(
        self, delegated: Delegated, reader: CommitReader, listed: Sequence[tuple[bytes, int]]
    ) -> list[bool]:
        chain = base_of(self.catalog)
        kinds = [decode_key(key).kind for key, _ in listed]
        found = [False] * len(listed)
        for kind, mark in _SEES.items():
            places = [at for at, one in enumerate(kinds) if one == kind]
            asked = [self._securable((listed[at][1],), chain, reader) for at in places]
            for at, is_seen in zip(places, delegated.which(LISTS[mark], asked), strict=True):
                found[at] = is_seen
        return found

    def _entity(self, id: int) -> bytes:
        return securables.entity(self.catalog.row.entity_id, id)

    def require(self, privilege: str, named: Named) -> None:
        """Raise an error if the principal lacks a privilege on a namespace, table or view.

        Raises:
            ForbiddenError: the principal sees the name, but lacks the privilege.
            NotFoundError: the principal does not see the name. The answer is the same as for a missing name.
        """
        place = self.place(named)
        if not self.may(privilege, place):
            if privilege == _SEES[named.kind] and self.sees(named, place):
                return  # a namespace that contains something on which the principal holds a privilege
            raise self.refusal(privilege, named, place)
        self.add(privilege, place, named.described)

    def add(self, privilege: str, place: Place, described: str) -> None:
        """Record a privilege that was required."""
        self.needed.append(Needed(privilege, tuple(place.chain), place.entities, place.view, described))

    def note(self) -> None:
        """If the catalog shows the state of a transaction, record the required privileges for its commit."""
        if is_transaction(self.catalog.branch):
            note_needs(self.catalog.branch, self.needed)

    def refusal(self, privilege: str, named: Named, place: Place) -> PolarisError:
        """Return the error for a principal that lacks a privilege: "forbidden", or "does not exist" if the principal
        may not see the entity."""
        if not named.namespace or self.sees(named, place):
            return forbidden(self.subject, privilege, named.described)
        return named.missing()

    def require_base(self, privilege: str, chain: Sequence[bytes], described: str) -> None:
        """Require a privilege on a branch, the catalog or the realm.

        Args:
            chain: keys of the securable and of those that contain it.
            described: description of the securable, for the error message.
        Raises:
            ForbiddenError: the principal lacks the privilege.
        """
        if not self.holds(privilege, chain) and not self.rules.owns(self.subject.name, privilege, chain):
            raise forbidden(self.subject, privilege, described)
        self.add(privilege, Place(tuple(chain), exists=True, entities=()), described)


def require_again(permissions: Permissions, transaction: Transaction) -> None:
    """Refuse the commit of a transaction if the principal has lost a privilege that a request of it needed.

    Args:
        permissions: what the principal may do now, on the branch on which the transaction began.
    Raises:
        ForbiddenError: the principal has lost a privilege.
    """
    known, own = transaction.begin.index(IDS), transaction.head
    delegated = permissions.subject.delegated
    if delegated is not None:  # what the transaction creates has a name only in its own state
        permissions = Permissions(
            permissions.rules, permissions.subject, permissions.catalog, own, permissions.newest
        )
    for need in transaction.needs:
        place = Place(need.chain, exists=True, entities=need.entities, view=need.view)
        if permissions.may(need.privilege, place):
            continue
        new = [id for id in need.entities if known.get(id_bytes(id)) is None]
        if delegated is not None or permissions.subject.name not in owners_of(own, new):
            raise forbidden(permissions.subject, need.privilege, need.described)


def knows_catalog(rules: Rules, subject: Subject, catalog: CatalogRow) -> bool:
    """Whether a principal may know that a catalog exists: its roles hold a privilege in the catalog, or a privilege on
    the realm that shows catalogs, or the principal owns the catalog."""
    if subject.delegated is not None:
        return subject.manages_access or subject.delegated.may(
            "CATALOG_LIST", Securable("catalog", catalog.name)
        )
    id = catalog.entity_id
    if id in subject.catalogs:
        return True
    return knows_all_catalogs(subject) or rules.owner(securables.catalog(id)) == subject.name


def known_catalogs(rules: Rules, subject: Subject, catalogs: Sequence[CatalogRow]) -> list[bool]:
    """Return, for each of the given catalogs, whether a principal may know that the catalog exists."""
    if subject.delegated is None or subject.manages_access:
        return [knows_catalog(rules, subject, one) for one in catalogs]
    return subject.delegated.which("CATALOG_LIST", [Securable("catalog", one.name) for one in catalogs])


def knows_all_catalogs(subject: Subject) -> bool:
    """Whether a principal may know that any catalog of the realm exists: its roles hold a privilege on the realm that
    shows catalogs."""
    on_realm = subject.held.get(securables.REALM, frozenset())
    return SEES_NAMESPACE in on_realm or "CATALOG_LIST" in on_realm or "CATALOG_READ_LOG" in on_realm


def forbidden(subject: Subject, privilege: str, described: str) -> ForbiddenError:
    """Return the error for a privilege that the principal lacks on something it may see."""
    if subject.delegated is not None:
        return ForbiddenError(
            f"principal {subject.name!r} needs the privilege {privilege} on {described}; the authorizer "
            f"{subject.delegated.authorizer!r} of this realm does not allow it"
        )
    return ForbiddenError(
        f"principal {subject.name!r} needs the privilege {privilege} on {described}; none of its active roles holds it "
        "there or above (explain_access shows why)"
    )


_READS_STORAGE = frozenset({"TABLE_READ_PROPERTIES", "TABLE_READ_DATA", "TABLE_LIST", SEES_TABLE})


def _of_storage(privilege: str) -> bool:
    """Whether a principal that may load a materialized view has this privilege on the view's storage table."""
    return privilege in _READS_STORAGE


class Filter(NamedTuple):
    """The result of a successful check: which entries of a list the principal may see."""

    keep: Callable[[CommitReader, Sequence[tuple[bytes, int]]], Sequence[bool]] | None
    """Chooses what a list shows; None for everything."""


def check(permissions: Permissions, needs: Needs, asked: Asked) -> Filter:
    """Raise an error unless the principal has all privileges that a request needs. The requests in the body of a
    transaction are not checked here, but when the transaction carries them out.

    Args:
        needs: what the request needs.
    Returns:
        what a list shows.
    Raises:
        ForbiddenError, NotFoundError: a need is not fulfilled.
    """
    filter = Filter(None)
    for need in needs:
        if need.on in (On.EACH_TABLE, On.EACH_NAMESPACE):
            _check_each(permissions, need, asked)
            continue
        if need.when is not None and not need.when.holds(asked):
            continue
        if need.on is On.LISTED or need.on is On.LISTED_TABLES or need.on is On.LISTED_VIEWS:
            if not _may_list(permissions, need, asked):
                filter = Filter(permissions.keep)
        elif need.on is not On.EACH_REQUEST:
            _fulfilled(permissions, need, asked)
    return filter


def require_through(permissions: Permissions, privilege: str, named: Named, text: str) -> None:
    """Refuse to load a table or view, unless the principal has the privilege on it, or reads it through views
    (`catalog.materialized.view_chains`).

    Args:
        privilege: the privilege that is needed without views.
        text: value of the parameter `referenced-by`.
    Raises:
        BadRequestError: `text` is not a chain of views.
        ForbiddenError: the chain does not allow the request. The message says why, but not whether the table or view
            exists.
        NotFoundError: the principal may not load the outermost view. The answer is the same as without a chain.
    """
    place = permissions.place(named)
    if permissions.may(privilege, place):
        return
    views, catalog = views_in(text), permissions.catalog
    if not permissions.may("VIEW_READ_PROPERTIES", permissions.place(Named(*views[0], VIEW))):
        raise permissions.refusal(privilege, named, place)
    if catalog.branch != MAIN or catalog.is_fixed:
        raise refused(
            views[0], f"tables can be read through views only in the newest state of the branch {MAIN}"
        )
    state = reading_state(permissions.head)
    chain = [Named(*view, VIEW) for view in views[1:]] + [named]
    for view, following in zip(views, chain, strict=True):
        definer = definer_of(state, catalog.name, view, TableName(following.namespace, following.name))
        needed = "TABLE_READ_DATA" if following.kind == TABLE else "VIEW_READ_PROPERTIES"
        if not _may_as(permissions, definer, needed, following):
            raise refused(
                view,
                f"{following} does not exist, or {definer!r}, who made the current version of the view, lacks the "
                f"privilege {needed} on it",
            )


def _may_as(permissions: Permissions, definer: str, privilege: str, named: Named) -> bool:
    """Whether another principal holds a privilege on a table or view that exists."""
    try:
        subject = permissions.rules.subject(definer, permissions.catalog.context.clock.now_ms())
    except NotAuthorizedError:
        return False
    other = Permissions(permissions.rules, subject, permissions.catalog, permissions.head, permissions.newest)
    place = permissions.place(named)
    return place.exists and other.may(privilege, place)


def _check_each(permissions: Permissions, need: Need, asked: Asked) -> None:
    """Check a need for each change of a table in the body of a transaction."""
    for change in asked.body.table_changes:
        applies = need.when is None or need.when.holds(asked._replace(body=change))
        if applies and change.identifier is not None:  # the route refuses it otherwise
            named = _of_identifier(change.identifier, TABLE)
            permissions.require(need.privilege, named if need.on is On.EACH_TABLE else Named(named.namespace))


def _fulfilled(permissions: Permissions, need: Need, asked: Asked) -> None:
    privilege = need.privilege
    catalog = permissions.catalog
    if need.on in (On.NOTHING, On.PROCEDURE, On.OWN, On.KNOWN_CATALOG):
        return
    if need.on is On.REALM:
        permissions.require_base(privilege, (securables.REALM,), "the realm")
    elif need.on is On.CATALOG:
        chain = (securables.catalog(catalog.row.entity_id), securables.REALM)
        permissions.require_base(privilege, chain, f"catalog {catalog.name}")
    elif need.on is On.BRANCH:
        permissions.require_base(privilege, base_of(catalog), f"branch {catalog.branch}")
    elif need.on is On.TABLE_ID:
        _require_id(permissions, privilege, asked.params["table"])
    elif need.on is On.TABLE_OR_NEW:
        _require_or_create(permissions, privilege, next(_named(On.TABLE, asked)))
    elif need.on is On.NEW_NAMESPACE:
        _require_above(permissions, privilege, asked)
    else:
        for named in _named(need.on, asked):
            if need.through_views and REFERENCED_BY in asked.query:
                require_through(permissions, privilege, named, asked.query[REFERENCED_BY])
            else:
                permissions.require(privilege, named)


def _require_id(permissions: Permissions, privilege: str, text: str) -> None:
    try:
        entity = int(text, 16)
    except ValueError:
        entity = 0  # the route reports it
    place = (
        place_of_id(permissions.catalog, permissions.head, entity)
        if 0 < entity < 1 << 63
        else Place((), exists=False, entities=())
    )
    if not permissions.may(privilege, place):
        raise NoSuchTableError(
            f"Table does not exist: the table with the id {entity:x} was dropped or never existed"
        )
    permissions.add(privilege, place, f"the table with the id {entity:x}")


def _require_or_create(permissions: Permissions, privilege: str, named: Named) -> None:
    """Check a need on a table that may not exist yet, because its creation is staged."""
    place = permissions.place(named)
    if place.exists or place.view is not None:
        permissions.require(privilege, named)
    elif not permissions.may("TABLE_CREATE", permissions.place(Named(named.namespace))):
        raise named.missing()


def _require_above(permissions: Permissions, privilege: str, asked: Asked) -> None:
    """Check the creation of a namespace. Missing parents are created, too, so the caller needs the privilege on the
    lowest existing parent. The error does not say which one this is."""
    name = tuple(asked.body.namespace)
    place = permissions.place(Named(name[:-1]))
    described = "the parent namespace or the catalog"
    if not permissions.may(privilege, place):
        raise forbidden(permissions.subject, privilege, described)
    permissions.add(privilege, place, described)


_LISTED_KIND = {On.LISTED: NAMESPACE, On.LISTED_TABLES: TABLE, On.LISTED_VIEWS: VIEW}


def _may_list(permissions: Permissions, need: Need, asked: Asked) -> bool:
    """Return whether the principal may see all entities of a list. This is the case if it holds a privilege for
    entities of this kind on the container, or on something that contains the container.

    Raises:
        NoSuchNamespaceError: the principal does not see the namespace that is listed.
    """
    if need.on is On.LISTED:
        parent = asked.query.get("parent")
        view = reading_state(permissions.head)
        named = Named(parent_in(view, parent) if parent else ())
    else:
        named = Named(namespace_in(asked.params["namespace"]))
    place = permissions.place(named)
    if permissions.subject.delegated is None and permissions.may(_SEES[_LISTED_KIND[need.on]], place):
        return True
    if named.namespace and not permissions.sees(named, place):
        raise named.missing()
    return False


def _named(on: On, asked: Asked) -> Iterator[Named]:
    params = asked.params
    if on is On.NAMESPACE:
        yield Named(namespace_in(params["namespace"]))
    elif on is On.TABLE:
        yield Named(namespace_in(params["namespace"]), params["table"], TABLE)
    elif on is On.VIEW:
        yield Named(namespace_in(params["namespace"]), params["view"], VIEW)
    elif on is On.NAMED_TABLE:
        yield _of_identifier(asked.body.source, TABLE)
    elif on is On.NAMED_VIEW:
        yield _of_identifier(asked.body.source, VIEW)
    elif on is On.TARGET_NAMESPACE:
        yield Named(tuple(asked.body.target.path))
    elif on is On.TARGET_TABLE:
        yield Named(tuple(asked.body.target.path[:-1]), "".join(asked.body.target.path[-1:]), TABLE)
    elif on is On.QUERY_NAMESPACE:
        yield Named(namespace_in(asked.query["namespace"]))
    elif on is On.QUERY_TABLE:
        yield Named(namespace_in(asked.query["namespace"]), asked.query["target-name"], TABLE)
    elif on is On.DESTINATION:
        yield Named(tuple(asked.body.destination.namespace))
    else:
        raise AssertionError(f"_named has no case for {on}")


def _of_identifier(identifier: Any, kind: bytes) -> Named:
    return Named(tuple(identifier.namespace), identifier.name, kind)


def hidden_catalog(name: str | None) -> NotFoundError:
    """Return the error for a catalog that the principal may not see: the same error as for a missing catalog.

    Args:
        name: the catalog's name in the request; None if there is none.
    """
    if name is None:
        return NotFoundError("there is no catalog here that this principal may see")
    return NotFoundError(f"there is no catalog {name!r} here")
