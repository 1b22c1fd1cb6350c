"""Implementation of the procedures of access control, which `jobs.access` defines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.access import securables
from polaris_spark.access.places import Place, place_of_id
from polaris_spark.access.privileges import ALL, PRIVILEGES, implied
from polaris_spark.errors import BadRequestError, ForbiddenError, InputError, NotFoundError
from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.procedure import Call
from polaris_spark.names import MAIN
from polaris_spark.property_values import duration_ms
from polaris_spark.rest.permissions import Named, Permissions, forbidden, hidden_catalog, knows_catalog

if TYPE_CHECKING:
    from polaris_spark.access.changes import AccessChange, RoleName
    from polaris_spark.access.rows import Principal

Rows = Iterable[tuple[Any, ...]]
Arguments = Mapping[str, Any]


class Target(NamedTuple):
    """The securable that the arguments of a procedure name."""

    securable: bytes
    chain: tuple[bytes, ...]
    described: str
    permissions: Permissions
    named: Named | None = None
    """Name of the securable, if it is a namespace, table or view."""

    @property
    def manages(self) -> str:
        """The privilege that is needed to change grants on the securable."""
        return "SERVICE_MANAGE_ACCESS" if self.securable == securables.REALM else "CATALOG_MANAGE_ACCESS"


def permissions_of(call: Call, *, rotating: bool = False) -> Permissions:
    """Return what the caller may do.

    Raises:
        ForbiddenError: the realm has no access control.
    """
    call.session.access.required()
    found = call.session.permissions(rotating=rotating)
    assert found is not None
    return found


def target_of(call: Call, arguments: Arguments) -> Target:
    """Return the securable that the arguments `on` and `name` name. A name that the caller may not see, and not manage
    either, is treated like one that does not exist.

    Raises:
        InputError: `on` is not a kind of securable, or `name` is missing.
        NotFoundError: there is no such namespace, table or view.
    """
    permissions = permissions_of(call)
    catalog = permissions.catalog
    kind, name = arguments.get("on", "catalog").lower(), arguments.get("name")
    id = catalog.row.entity_id
    whole = (securables.catalog(id), securables.REALM)
    if kind == "realm":
        return Target(securables.REALM, (securables.REALM,), "the realm", permissions)
    if not knows_catalog(permissions.rules, permissions.subject, catalog.row):
        raise hidden_catalog(None)
    if kind == "catalog":
        if name not in (None, catalog.name):
            raise InputError(
                f"the argument names another catalog than that of this session, {catalog.name!r}; open a session "
                "of the other catalog"
            )
        return Target(whole[0], whole, f"catalog {catalog.name}", permissions)
    if kind not in ("branch", "namespace", "table", "view"):
        raise InputError(f"on is {kind!r}; it must be realm, catalog, branch, namespace, table or view")
    if not name:
        raise InputError(
            f"give the name of the {kind}, such as name => '{'db' if kind == 'namespace' else 'db.t'}'"
        )
    if kind == "branch":
        from polaris_spark.catalog.catalogs.catalogs import require_branch

        require_branch(catalog.references, catalog.row, name)
        return Target(
            securables.branch(id, name), (securables.branch(id, name), *whole), f"branch {name}", permissions
        )
    return _named_target(permissions, kind, name)


def _named_target(permissions: Permissions, kind: str, text: str) -> Target:
    is_namespace = kind == "namespace"
    levels = levels_named(
        permissions.head, permissions.catalog.name, "namespace" if is_namespace else "table", text
    )
    byte = {"namespace": b"n", "table": b"t", "view": b"v"}[kind]
    return entity_target(permissions, Named(levels) if is_namespace else Named(levels[:-1], levels[-1], byte))


def entity_target(permissions: Permissions, named: Named) -> Target:
    """Return the securable of a namespace, table or view. A name that the caller may not see, and not manage either, is
    treated like one that does not exist.

    Raises:
        NotFoundError: there is no such namespace, table or view.
    """
    place = permissions.place(named)
    manages = permissions.may("CATALOG_MANAGE_ACCESS", place)
    if not place.exists or not (manages or permissions.sees(named, place)):
        raise named.missing()
    return Target(place.chain[0], place.chain, named.described, permissions, named)


def require_managing(target: Target) -> None:
    """Raise an error if the caller may not change the grants on a securable.

    Raises:
        ForbiddenError: the caller neither holds the privilege nor owns the securable.
    """
    permissions, privilege = target.permissions, target.manages
    if target.named is not None:
        place = permissions.place(target.named)
        if not permissions.may(privilege, place) or not _may_on_main(permissions, privilege, place):
            raise forbidden(permissions.subject, privilege, target.described)
    else:
        permissions.require_base(privilege, target.chain, target.described)


def _may_on_main(permissions: Permissions, privilege: str, place: Place) -> bool:
    """Whether the principal also holds a privilege on an entity in the state of the branch `main`; True if it does not
    exist there. Grants on an entity hold on every branch, but owners and namespaces can differ: a principal that
    created a branch from an earlier commit may own entities there that others own on `main`."""
    catalog = permissions.catalog
    if catalog.branch == MAIN:
        return True
    main = catalog.on_branch(MAIN)
    head = main.head()
    there = place_of_id(main, head, place.entities[0])
    on_main = Permissions(permissions.rules, permissions.subject, main, head, head)
    return not there.exists or on_main.may(privilege, there)


def role_of(call: Call, text: str) -> RoleName:
    """Return the role that a text names. `name` stands for a principal role, and `catalog.name` for a role of the
    session's catalog."""
    from polaris_spark.access.changes import RoleName

    row = call.session.catalog.row
    prefix = f"{row.name}."
    if text.startswith(prefix) and len(text) > len(prefix):
        return RoleName(text.removeprefix(prefix), row)
    return RoleName(text)


def changed(call: Call, cls: type[AccessChange[Any]], *arguments: Any, **keywords: Any) -> Any:
    """Commit a change of the rules for the caller, and return its result."""
    session = call.session
    return session.access.change(cls(session.connection.clock, session.operation(), *arguments, **keywords))


def grant(call: Call, arguments: Arguments, *, revoke: bool = False) -> Rows:
    from polaris_spark.access.grant_changes import Grant

    target, role = target_of(call, arguments), role_of(call, arguments["role"])
    require_managing(target)
    names = arguments.get("privileges", "").split(",")
    wanted = [one.strip().upper() for one in names if one.strip()]
    left = changed(call, Grant, role, target.securable, wanted, described=target.described, revoke=revoke)
    return [(str(role), target.described, one) for one in left] or [(str(role), target.described, None)]


def show_grants(call: Call, arguments: Arguments) -> Rows:
    permissions = permissions_of(call)
    rules, subject = permissions.rules, permissions.subject
    catalog = permissions.catalog.row.entity_id
    wanted = role_of(call, arguments["role"]) if "role" in arguments else None
    describe = Describer(permissions)
    on_realm = permissions.holds("SERVICE_MANAGE_ACCESS", (securables.REALM,))
    in_catalog = permissions.holds("CATALOG_MANAGE_ACCESS", (securables.catalog(catalog), securables.REALM))
    for id, role in sorted(rules.roles.items(), key=lambda item: rules.describe_role(item[0])):
        is_catalogs = getattr(role, "catalog", None)
        if is_catalogs not in (None, catalog):
            continue
        if wanted is not None and (
            wanted.name != role.name or (wanted.catalog is None) != (is_catalogs is None)
        ):
            continue
        is_own = id in subject.role_names
        for securable, privileges in sorted(rules.grants.get(id, {}).items()):
            of = securables.catalog_of(securable)
            if of not in (None, catalog) or not (is_own or on_realm or (in_catalog and of == catalog)):
                continue
            label = describe(securable)
            shown = ["ALL"] if privileges == ALL else sorted(privileges)
            yield from ((rules.describe_role(id), label, one) for one in shown)


class Describer:
    """Returns descriptions of securables, for messages and results. The names of namespaces, tables and views are read
    from the session's state of the catalog."""

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions

    def __call__(self, securable: bytes) -> str:
        from polaris_spark.catalog.rows import IDS, id_bytes
        from polaris_spark.index.keys import decode_key

        catalog = self._permissions.catalog
        if securable == securables.REALM:
            return "the realm"
        branch, entity = securables.branch_of(securable), securables.entity_of(securable)
        if branch is not None:
            return f"branch {branch}"
        if entity is None:
            return f"catalog {catalog.name}"
        entry = self._permissions.head.index(IDS).get(id_bytes(entity))
        if entry is None:
            return f"an entity that is not in this branch ({entity:x})"
        path, kind, name = decode_key(entry.value)
        return f"{ {b'n': 'namespace', b't': 'table', b'v': 'view'}.get(kind, 'entity') } {'.'.join((*path, name))}"


def who_can(call: Call, arguments: Arguments) -> Rows:
    privilege = _known(arguments["privilege"])
    target = target_of(call, arguments)
    require_managing(target)
    permissions = target.permissions
    now = call.session.connection.clock.now_ms()
    for name, principal in sorted(permissions.rules.principals.items()):
        if not principal.is_active(now):
            continue
        if permissions.rules.authorizer is not None:
            if _allows(_as(permissions, name), target, privilege):
                yield (name, f"authorizer {permissions.rules.authorizer}", None, target.described)
            continue
        subject = permissions.rules.subject(name, now, rotating=True)
        reasons = permissions.rules.reasons(subject, privilege, target.chain)
        for reason in reasons:
            yield (name, reason.role, reason.privilege, Describer(permissions)(reason.securable))
        if _owner_allows(_as(permissions, name), target, privilege):
            yield (name, "owner", None, target.described)


def _as(permissions: Permissions, name: str) -> Permissions:
    now = permissions.catalog.context.clock.now_ms()
    subject = permissions.rules.subject(name, now, rotating=True)
    return Permissions(permissions.rules, subject, permissions.catalog, permissions.head, permissions.newest)


def _allows(permissions: Permissions, target: Target, privilege: str) -> bool:
    if target.named is not None:
        return permissions.may(privilege, permissions.place(target.named))
    return permissions.holds(privilege, target.chain)


def _owner_allows(permissions: Permissions, target: Target, privilege: str) -> bool:
    if target.named is not None:
        return permissions.owns(privilege, permissions.place(target.named))
    return permissions.rules.owns(permissions.subject.name, privilege, target.chain)


def _known(text: str) -> str:
    name = text.strip().upper()
    if name not in PRIVILEGES:
        raise BadRequestError(f"there is no privilege {text[:80]!r}; show_privileges lists them")
    return name


def explain(call: Call, arguments: Arguments) -> Rows:
    privilege = _known(arguments["privilege"])
    own = permissions_of(call)
    name = arguments.get("principal", own.subject.name)
    target = target_of(call, arguments)
    if name != own.subject.name:
        require_managing(target)
        if name not in own.rules.principals:
            raise NotFoundError(f"there is no principal {name!r}")
    permissions = _as(own, name) if name != own.subject.name else own
    if permissions.rules.authorizer is not None:
        answer = "allowed" if _allows(permissions, target, privilege) else "refused"
        yield (answer, f"{privilege} on {target.described} for principal {name}", None)
        yield ("because", f"the authorizer {permissions.rules.authorizer} of this realm decides so", None)
        return
    describe = Describer(permissions)
    reasons = permissions.rules.reasons(permissions.subject, privilege, target.chain)
    is_owner = _owner_allows(permissions, target, privilege)
    answer = "allowed" if reasons or is_owner else "refused"
    yield (answer, f"{privilege} on {target.described} for principal {name}", None)
    roles = ", ".join(sorted(permissions.rules.describe_role(id) for id in permissions.subject.role_names))
    yield ("roles", roles or "none", None)
    for reason in reasons:
        more = "" if reason.privilege == privilege else f", which implies {privilege}"
        yield (
            "because",
            f"{reason.role} has {reason.privilege} on {describe(reason.securable)}{more}",
            reason.role,
        )
    if is_owner:
        yield ("because", f"{name} owns it or something above it", None)
    if answer == "refused":
        looked = ", ".join(describe(one) for one in target.chain)
        by = ", ".join(one for one in PRIVILEGES if privilege in implied(frozenset((one,))))
        yield ("looked at", looked, None)
        yield ("would suffice", by, None)


def show_privileges(_: Call, __: Arguments) -> Rows:
    labels = {"R": "realm", "C": "catalog", "B": "branch", "E": "namespace, table, view"}
    for name, one in PRIVILEGES.items():
        implies = sorted(implied(frozenset((name,))).intersection(PRIVILEGES) - {name})
        yield (name, one.meaning, ", ".join(labels[kind] for kind in one.on), ", ".join(implies))


def create_principal(call: Call, arguments: Arguments) -> Rows:
    from polaris_spark.access.credentials import Credentials, verify
    from polaris_spark.access.principal_changes import CreatePrincipal

    credentials = Credentials.new()
    now = call.session.connection.clock.now_ms()
    lifetime = arguments.get("expires_after")
    row = changed(
        call,
        CreatePrincipal,
        arguments["name"],
        credentials,
        expires=0 if lifetime is None else now + duration_ms("expires_after", lifetime),
        must_rotate=arguments.get("must_rotate", False),
        properties=arguments.get("properties"),
    )
    secret = credentials.secret.reveal()
    return [(row.name, row.client_id, secret if verify(row, secret, now) else None)]


def _replace_credentials(call: Call, arguments: Arguments, *, is_reset: bool) -> Rows:
    from polaris_spark.access.credentials import Credentials
    from polaris_spark.access.principal_changes import ReplaceCredentials

    permissions = permissions_of(call, rotating=not is_reset)
    name = arguments.get("name", permissions.subject.name)
    if not is_reset and name != permissions.subject.name:
        raise ForbiddenError(
            "a principal can rotate only its own credentials; use reset_credentials for those of another principal"
        )
    row = principal_of(permissions, name)
    credentials = Credentials.new(row.client_id)
    keep = arguments.get("keep_old", "0 s")
    changed(
        call,
        ReplaceCredentials,
        name,
        credentials,
        keep_old_ms=duration_ms("keep_old", keep),
        is_reset=is_reset,
        must_rotate=arguments.get("must_rotate", False),
        expected=None if is_reset else call.session.secret,
    )
    return [(name, row.client_id, credentials.secret.reveal())]


def rotate(call: Call, arguments: Arguments) -> Rows:
    """Rotate the caller's credentials. A caller that logged in without a secret, or with only some of the principal's
    roles, may not do this: with the new secret, it could log in for longer and with more roles.

    Raises:
        ForbiddenError: the caller has such a login.
    """
    if call.session.secret is None or call.session.roles is not None:
        raise ForbiddenError(
            "only a login with the client id and secret, and with all roles of the principal, can rotate the "
            "credentials"
        )
    return _replace_credentials(call, arguments, is_reset=False)


def reset(call: Call, arguments: Arguments) -> Rows:
    protect_administrators(call, arguments["name"])
    return _replace_credentials(call, arguments, is_reset=True)


def revoke_tokens(call: Call, _: Arguments) -> Rows:
    from polaris_spark.access.token_keys import RevokeTokens

    permissions_of(call)
    return [(changed(call, RevokeTokens),)]


def principal_of(permissions: Permissions, name: str) -> Principal:
    found = permissions.rules.principals.get(name)
    if found is None or found.state == "dropped":
        raise NotFoundError(f"there is no principal {name!r}")
    return found


def protect_administrators(call: Call, name: str) -> None:
    """Raise an error if the caller is not an administrator but wants to change an administrator. Otherwise, the caller
    could log in as that administrator.

    Raises:
        ForbiddenError: the principal may manage access of the realm, and the caller may not.
    """
    permissions = permissions_of(call)
    if permissions.rules.may_ever_manage(principal_of(permissions, name)):
        permissions.require_base("SERVICE_MANAGE_ACCESS", (securables.REALM,), "the realm")


def drop_principal(call: Call, arguments: Arguments) -> Rows:
    from polaris_spark.access.principal_changes import DropPrincipal

    protect_administrators(call, arguments["name"])
    changed(call, DropPrincipal, arguments["name"])
    return [(arguments["name"], "dropped")]


def alter_principal(call: Call, arguments: Arguments) -> Rows:
    from polaris_spark.access.principal_changes import AlterPrincipal

    state, lifetime = arguments.get("state"), arguments.get("expires_after")
    if state not in (None, "active", "revoked"):
        raise InputError(f"state is {state!r}; it must be 'active' or 'revoked'")
    protect_administrators(call, arguments["name"])
    now = call.session.connection.clock.now_ms()
    row = changed(
        call,
        AlterPrincipal,
        arguments["name"],
        state=state,
        expires=None if lifetime is None else now + duration_ms("expires_after", lifetime),
        properties=arguments.get("properties"),
    )
    return [(row.name, row.state)]


def show_principals(call: Call, _: Arguments) -> Rows:
    from polaris_spark.clock import iso_text

    rules = permissions_of(call).rules
    for name, row in sorted(rules.principals.items()):
        if row.state != "dropped":
            roles = ", ".join(sorted(role.name for role in rules.roles_of(row.entity_id)))
            expires = iso_text(row.expires) if row.expires else None
            yield (name, row.client_id, row.state, iso_text(row.created), expires, roles)


def create_role(call: Call, arguments: Arguments) -> Rows:
    from polaris_spark.access.changes import CreateRole

    role = role_of(call, arguments["name"])
    require_roles(call, role, "PRINCIPAL_ROLE_CREATE")
    changed(
        call, CreateRole, role, arguments.get("properties"), if_missing=arguments.get("if_not_exists", False)
    )
    return [(str(role),)]


def drop_role(call: Call, arguments: Arguments) -> Rows:
    from polaris_spark.access.changes import DropRole

    role = role_of(call, arguments["name"])
    require_roles(call, role, "PRINCIPAL_ROLE_DROP")
    changed(call, DropRole, role)
    return [(str(role),)]


def require_roles(call: Call, role: RoleName, privilege: str) -> None:
    """Check that the caller may change a role. A principal role needs `privilege` on the realm; a catalog role needs
    `CATALOG_MANAGE_ACCESS` on its catalog."""
    permissions = permissions_of(call)
    if role.catalog is None:
        permissions.require_base(privilege, (securables.REALM,), "the realm")
    else:
        chain = (securables.catalog(role.catalog.entity_id), securables.REALM)
        permissions.require_base("CATALOG_MANAGE_ACCESS", chain, f"catalog {role.catalog.name}")


def assign(call: Call, arguments: Arguments, *, revoke: bool = False) -> Rows:
    from polaris_spark.access.changes import Assign

    role, holder = role_of(call, arguments["role"]), arguments["holder"]
    require_roles(call, role, "SERVICE_MANAGE_ACCESS")
    of = {"principal": holder} if role.catalog is None else {"principal_role": holder}
    done = changed(call, Assign, role, revoke=revoke, **of)
    return [(str(role), holder, done)]


def revoke_role(call: Call, arguments: Arguments) -> Rows:
    return assign(call, arguments, revoke=True)


def revoke(call: Call, arguments: Arguments) -> Rows:
    return grant(call, arguments, revoke=True)


def show_roles(call: Call, _: Arguments) -> Iterator[tuple[Any, ...]]:
    permissions = permissions_of(call)
    rules, subject = permissions.rules, permissions.subject
    catalog = permissions.catalog.row
    names = {row.entity_id: row.name for row in rules.principals.values()}
    names |= {id: role.name for id, role in rules.roles.items()}
    sees_all = permissions.holds("PRINCIPAL_ROLE_LIST", (securables.REALM,))
    in_catalog = permissions.holds(
        "CATALOG_MANAGE_ACCESS", (securables.catalog(catalog.entity_id), securables.REALM)
    )
    for one in rules.principal_roles():
        if sees_all or one.entity_id in subject.role_names:
            holders = sorted(names[id] for id in rules.holders_of(one.entity_id) if id in names)
            yield (one.name, "principal role", ", ".join(holders) if sees_all else subject.name)
    for two in rules.catalog_roles(catalog.entity_id):
        if in_catalog or two.entity_id in subject.role_names:
            holders = sorted(names[id] for id in rules.holders_of(two.entity_id) if id in names)
            yield (f"{catalog.name}.{two.name}", "catalog role", ", ".join(holders) if in_catalog else None)


def set_authorizer(call: Call, arguments: Arguments) -> Rows:
    from polaris_spark.access.authorizers import Securable
    from polaris_spark.access.decisions import Delegated
    from polaris_spark.access.grant_changes import SetAuthorizer
    from polaris_spark.system.features import EXTERNAL_AUTHORIZERS, require_feature

    permissions = permissions_of(call)
    rules, subject, name = permissions.rules, permissions.subject, arguments.get("name")
    if not subject.manages_access:  # an authorizer does not decide about this
        raise ForbiddenError(
            f"principal {subject.name!r} needs a grant of SERVICE_MANAGE_ACCESS on the realm to change its authorizer"
        )
    if name is not None:
        realm, connection = call.session.properties.realm, call.session.connection
        require_feature(connection.realms.active(realm).features, EXTERNAL_AUTHORIZERS, f"realm {realm!r}")
        # refuse an authorizer that cannot be asked here
        Delegated(name, rules.realm, subject.name, ()).may("SERVICE_MANAGE_ACCESS", Securable("realm"))
    return [(changed(call, SetAuthorizer, name), name)]


def set_owner(call: Call, arguments: Arguments) -> Rows:
    from polaris_spark.access.grant_changes import SetOwner

    target, owner = target_of(call, arguments), arguments["owner"]
    require_managing(target)
    principal_of(target.permissions, owner)
    if target.named is None:
        changed(call, SetOwner, target.securable, owner, target.described)
    else:
        from polaris_spark.catalog.entities.owners import SetEntityOwner
        from polaris_spark.catalog.merges.transactions import refuse_nested

        refuse_nested(call.session.catalog)
        catalog = call.session.catalog.resolving(dict(target.permissions.resolved).items())
        levels, kind = target.named, target.named.kind
        catalog.commit(
            SetEntityOwner(
                catalog.context, call.session.operation(), (*levels.namespace, levels.name), kind, owner
            )
        )
    return [(target.described, owner)]


def show_owner(call: Call, arguments: Arguments) -> Rows:
    target = target_of(call, arguments)
    permissions = target.permissions
    if target.named is not None:
        owners = permissions.owners(permissions.place(target.named))
        return [(target.described, owners[0] if owners else None)]
    return [(target.described, permissions.rules.owner(target.securable))]
