"""Answers to the routes of principals, roles and grants (`extension.management_access`).

A realm without access control refuses them. Each function makes the same checks of the caller as the procedure with the
same purpose (`jobs.access_calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from polaris_spark.access import securables
from polaris_spark.access.changes import AlterRole, Assign, CreateRole, DropRole, RoleName
from polaris_spark.access.grant_changes import Grant
from polaris_spark.access.principal_changes import AlterPrincipal
from polaris_spark.access.privileges import PRIVILEGES
from polaris_spark.access.rows import (
    PRINCIPALS,
    ROLES,
    CatalogRole,
    Principal,
    PrincipalRole,
    catalog_role_key,
    principal_key,
    principal_role_key,
)
from polaris_spark.access.rules import Rules
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.rows import IDS, NAMESPACE, TABLE, VIEW, id_bytes
from polaris_spark.errors import BadRequestError, CommitFailedError, ForbiddenError, NotFoundError
from polaris_spark.extension.management import session_of, version_of
from polaris_spark.extension.management_messages import (
    CatalogRoleRequest,
    CreateManagedPrincipalRequest,
    GrantRequest,
    GrantResource,
    GrantResources,
    ManagedCredentials,
    ManagedPrincipal,
    ManagedPrincipals,
    ManagedRole,
    ManagedRoles,
    PrincipalRoleRequest,
    PrincipalWithCredentials,
    ResetManagedPrincipalRequest,
    UpdateEntityRequest,
)
from polaris_spark.ids import id_time_ms
from polaris_spark.index import Entry
from polaris_spark.index.keys import decode_key
from polaris_spark.jobs.access_calls import (
    Target,
    changed,
    entity_target,
    permissions_of,
    principal_of,
    protect_administrators,
    require_managing,
    require_roles,
)
from polaris_spark.jobs.procedure import Call
from polaris_spark.jobs.registry import find
from polaris_spark.rest.messages import decode, encode
from polaris_spark.rest.permissions import Named
from polaris_spark.rest.request import NO_CONTENT, Request, Response, json_response

_ADDED = Response(201, {}, "")
AnyRole = PrincipalRole | CatalogRole


def _call(request: Request) -> Call:
    """Return a call of a procedure by the caller, in the catalog that the request names, if it names one.

    Raises:
        ForbiddenError: the realm has no access control.
        NotFoundError: the catalog does not exist, or the caller may not see it.
    """
    session = session_of(request)
    session.access.required()
    name = request.params.get("catalog")
    if name is not None:
        session.require_verified()
        row = session.catalogs.get(name).row
        own = session.catalog
        if row.entity_id != own.row.entity_id:
            session = session.derive(catalog=Catalog(own.references, row, own.context, own.files))
    return Call(session, over_http=not request.caller.is_local)


def _require(call: Call, *privileges: str) -> Rules:
    """Check that the caller holds all of these privileges on the realm, and return the realm's access rules."""
    permissions = permissions_of(call)
    for privilege in privileges:
        permissions.require_base(privilege, (securables.REALM,), "the realm")
    return permissions.rules


def _require_unchanged(what: str, pointer: int, given: int) -> None:
    if version_of(pointer) != given:
        raise CommitFailedError(f"{what} has the version {version_of(pointer)}, not {given}; read it again")


# Principals


def list_principals(_: Catalog, request: Request) -> Response:
    """Answer `GET principals`: describe all principals."""
    return _principals(rules := _require(_call(request), "PRINCIPAL_LIST"), rules.principals.values())


def create_principal(_: Catalog, request: Request) -> Response:
    """Answer `POST principals`: create a principal, and return its credentials."""
    asked = decode(request.body, CreateManagedPrincipalRequest)
    call = _call(request)
    arguments = {
        "name": asked.principal.name,
        "must_rotate": asked.credential_rotation_required,
        "properties": asked.principal.properties,
    }
    return _credentials(call, find("create_principal").rows(call, arguments), 201)


def get_principal(_: Catalog, request: Request) -> Response:
    """Answer `GET principals/{principal}`: describe a principal."""
    call = _call(request)
    _require(call, "PRINCIPAL_READ_PROPERTIES")
    return json_response(encode(_principal(call, request.params["principal"])))


def update_principal(_: Catalog, request: Request) -> Response:
    """Answer `PUT principals/{principal}`: replace the properties of a principal."""
    asked, name, call = decode(request.body, UpdateEntityRequest), request.params["principal"], _call(request)
    _require(call, "PRINCIPAL_WRITE_PROPERTIES")
    protect_administrators(call, name)
    pointer = _pointer_of_principal(call.session.access.required(), name)
    _require_unchanged(f"principal {name!r}", pointer, asked.current_entity_version)
    changed(call, AlterPrincipal, name, properties=asked.properties, expected=pointer)
    return json_response(encode(_principal(call, name)))


def drop_principal(_: Catalog, request: Request) -> Response:
    """Answer `DELETE principals/{principal}`: drop a principal."""
    call = _call(request)
    find("drop_principal").rows(call, {"name": request.params["principal"]})
    return NO_CONTENT


def rotate_credentials(_: Catalog, request: Request) -> Response:
    """Answer `POST principals/{principal}/rotate`: give the principal a new secret. Only the principal itself may call
    this."""
    call = _call(request)
    if request.params["principal"] != call.session.principal:
        raise ForbiddenError(
            "a principal can rotate only its own credentials; to replace those of another principal, reset them"
        )
    return _credentials(call, find("rotate_credentials").rows(call, {}), 200)


def reset_credentials(_: Catalog, request: Request) -> Response:
    """Answer `POST principals/{principal}/reset`: give a principal a new secret."""
    if request.body:
        asked = decode(request.body, ResetManagedPrincipalRequest)
        if asked.client_id is not None or asked.client_secret is not None:
            raise BadRequestError("credentials are generated; send neither clientId nor clientSecret")
    call = _call(request)
    made = find("reset_credentials").rows(call, {"name": request.params["principal"]})
    return _credentials(call, made, 200)


def list_roles_of_principal(_: Catalog, request: Request) -> Response:
    """Answer `GET principals/{principal}/principal-roles`: describe the roles of a principal."""
    call = _call(request)
    rules = _require(call, "PRINCIPAL_READ_PROPERTIES", "PRINCIPAL_ROLE_LIST")
    holder = principal_of(permissions_of(call), request.params["principal"])
    return _roles(rules, rules.roles_of(holder.entity_id))


def assign_principal_role(_: Catalog, request: Request) -> Response:
    """Answer `PUT principals/{principal}/principal-roles`: give a role to a principal."""
    role, call = RoleName(decode(request.body, PrincipalRoleRequest).principal_role.name), _call(request)
    require_roles(call, role, "SERVICE_MANAGE_ACCESS")
    changed(call, Assign, role, principal=request.params["principal"])
    return _ADDED


def revoke_principal_role(_: Catalog, request: Request) -> Response:
    """Answer `DELETE principals/{principal}/principal-roles/{role}`: take a role away from a principal."""
    role, call = RoleName(request.params["role"]), _call(request)
    require_roles(call, role, "SERVICE_MANAGE_ACCESS")
    changed(call, Assign, role, principal=request.params["principal"], revoke=True)
    return NO_CONTENT


# Principal roles


def list_principal_roles(_: Catalog, request: Request) -> Response:
    """Answer `GET principal-roles`: describe all principal roles."""
    rules = _require(_call(request), "PRINCIPAL_ROLE_LIST")
    return _roles(rules, rules.principal_roles())


def create_principal_role(_: Catalog, request: Request) -> Response:
    """Answer `POST principal-roles`: create a principal role."""
    return _create(_call(request), decode(request.body, PrincipalRoleRequest).principal_role)


def get_principal_role(_: Catalog, request: Request) -> Response:
    """Answer `GET principal-roles/{role}`: describe a principal role."""
    call = _call(request)
    rules = _require(call, "PRINCIPAL_ROLE_LIST")
    return json_response(encode(_role(rules, RoleName(request.params["role"]))))


def update_principal_role(_: Catalog, request: Request) -> Response:
    """Answer `PUT principal-roles/{role}`: replace the properties of a principal role."""
    return _update(_call(request), RoleName(request.params["role"]), request)


def drop_principal_role(_: Catalog, request: Request) -> Response:
    """Answer `DELETE principal-roles/{role}`: drop a principal role."""
    return _drop(_call(request), RoleName(request.params["role"]))


def list_principals_of_role(_: Catalog, request: Request) -> Response:
    """Answer `GET principal-roles/{role}/principals`: describe the principals that have a role."""
    rules = _require(_call(request), "PRINCIPAL_ROLE_LIST", "PRINCIPAL_LIST")
    holders = rules.holders_of(_found(rules, RoleName(request.params["role"])).entity_id)
    return _principals(rules, [one for one in rules.principals.values() if one.entity_id in holders])


def list_catalog_roles_of_role(_: Catalog, request: Request) -> Response:
    """Answer `GET principal-roles/{role}/catalog-roles/{catalog}`: describe the roles of a catalog that a principal
    role has."""
    call = _call(request)
    rules, row = _managing(call), call.session.catalog.row
    held = rules.roles_of(_found(rules, RoleName(request.params["role"])).entity_id)
    return _roles(
        rules, [one for one in held if isinstance(one, CatalogRole) and one.catalog == row.entity_id]
    )


def assign_catalog_role(_: Catalog, request: Request) -> Response:
    """Answer `PUT principal-roles/{role}/catalog-roles/{catalog}`: give a catalog role to a principal role."""
    call = _call(request)
    role = RoleName(decode(request.body, CatalogRoleRequest).catalog_role.name, call.session.catalog.row)
    require_roles(call, role, "")
    changed(call, Assign, role, principal_role=request.params["role"])
    return _ADDED


def revoke_catalog_role(_: Catalog, request: Request) -> Response:
    """Answer `DELETE principal-roles/{role}/catalog-roles/{catalog}/{catalog-role}`: take a catalog role away from a
    principal role."""
    call = _call(request)
    role = _catalog_role(call, request)
    require_roles(call, role, "")
    changed(call, Assign, role, principal_role=request.params["role"], revoke=True)
    return NO_CONTENT


# Catalog roles


def list_catalog_roles(_: Catalog, request: Request) -> Response:
    """Answer `GET catalogs/{catalog}/catalog-roles`: describe the roles of a catalog."""
    call = _call(request)
    rules = _managing(call)
    return _roles(rules, rules.catalog_roles(call.session.catalog.row.entity_id))


def create_catalog_role(_: Catalog, request: Request) -> Response:
    """Answer `POST catalogs/{catalog}/catalog-roles`: create a role of a catalog."""
    return _create(_call(request), decode(request.body, CatalogRoleRequest).catalog_role, of_catalog=True)


def get_catalog_role(_: Catalog, request: Request) -> Response:
    """Answer `GET catalogs/{catalog}/catalog-roles/{catalog-role}`: describe a role of a catalog."""
    call = _call(request)
    return json_response(encode(_role(_managing(call), _catalog_role(call, request))))


def update_catalog_role(_: Catalog, request: Request) -> Response:
    """Answer `PUT catalogs/{catalog}/catalog-roles/{catalog-role}`: replace the properties of a role of a catalog."""
    call = _call(request)
    return _update(call, _catalog_role(call, request), request)


def drop_catalog_role(_: Catalog, request: Request) -> Response:
    """Answer `DELETE catalogs/{catalog}/catalog-roles/{catalog-role}`: drop a role of a catalog."""
    call = _call(request)
    return _drop(call, _catalog_role(call, request))


def list_roles_of_catalog_role(_: Catalog, request: Request) -> Response:
    """Answer `GET catalogs/{catalog}/catalog-roles/{catalog-role}/principal-roles`: describe the principal roles that
    have a role of a catalog."""
    call = _call(request)
    rules = _managing(call)
    holders = rules.holders_of(_found(rules, _catalog_role(call, request)).entity_id)
    return _roles(rules, [rules.roles[id] for id in holders if id in rules.roles])


# Grants


def list_grants(_: Catalog, request: Request) -> Response:
    """Answer `GET catalogs/{catalog}/catalog-roles/{catalog-role}/grants`: list the grants of a role of a catalog.
    Grants on branches, and on entities that do not exist on the branch `main`, are left out."""
    call = _call(request)
    rules = _managing(call)
    role = _found(rules, _catalog_role(call, request))
    resource = partial(_resource, call.session.catalog.head().index(IDS).get)
    found = [
        one
        for securable, privileges in sorted(rules.grants.get(role.entity_id, {}).items())
        for privilege in sorted(privileges.intersection(PRIVILEGES))
        if (one := resource(securable, privilege)) is not None
    ]
    return json_response(encode(GrantResources(found)))


def add_grant(_: Catalog, request: Request) -> Response:
    """Answer `PUT catalogs/{catalog}/catalog-roles/{catalog-role}/grants`: grant a privilege."""
    _grant(request, revoke=False)
    return _ADDED


def revoke_grant(_: Catalog, request: Request) -> Response:
    """Answer `POST catalogs/{catalog}/catalog-roles/{catalog-role}/grants`: revoke a privilege."""
    if request.query.get("cascade", "false") != "false":
        raise BadRequestError("cascade is not supported; revoke each grant")
    _grant(request, revoke=True)
    return _ADDED


def _grant(request: Request, *, revoke: bool) -> None:
    asked, call = decode(request.body, GrantRequest).grant, _call(request)
    target = _target(call, asked)
    require_managing(target)
    if revoke and asked.privilege not in PRIVILEGES:
        raise BadRequestError(f"there is no privilege {asked.privilege[:80]!r}; show_privileges lists them")
    role = _catalog_role(call, request)
    described = target.described
    changed(call, Grant, role, target.securable, [asked.privilege], described=described, revoke=revoke)


def _target(call: Call, asked: GrantResource) -> Target:
    """Return the securable that a message names.

    Raises:
        BadRequestError: the type is unknown, or a name is missing.
        NotFoundError: the namespace, table or view does not exist, or the caller may not see it.
    """
    permissions = permissions_of(call)
    row = permissions.catalog.row
    if asked.type == "catalog":
        whole = (securables.catalog(row.entity_id), securables.REALM)
        return Target(whole[0], whole, f"catalog {row.name}", permissions)
    if asked.type not in _KINDS:
        raise BadRequestError(f"type is {asked.type[:80]!r}; it must be catalog, namespace, table or view")
    kind = _KINDS[asked.type]
    name = {TABLE: asked.table_name, VIEW: asked.view_name}.get(kind, "")
    if not asked.namespace or name is None:
        raise BadRequestError(f"a grant of the type {asked.type} names a namespace and the {asked.type}")
    return entity_target(permissions, Named(tuple(asked.namespace), name, kind))


_KINDS = {"namespace": NAMESPACE, "table": TABLE, "view": VIEW}


def _resource(
    entry_of: Callable[[bytes], Entry | None], securable: bytes, privilege: str
) -> GrantResource | None:
    """Return a grant as a message; None if the API has no form for it.

    Args:
        entry_of: returns the entry of an entity id in the index `ids`.
    """
    if securables.branch_of(securable) is not None:
        return None
    id = securables.entity_of(securable)
    if id is None:
        return GrantResource("catalog", privilege)
    entry = entry_of(id_bytes(id))
    if entry is None:
        return None
    path, kind, name = decode_key(entry.value)
    if kind == NAMESPACE:
        return GrantResource("namespace", privilege, [*path, name])
    if kind == TABLE:
        return GrantResource("table", privilege, list(path), table_name=name)
    return GrantResource("view", privilege, list(path), view_name=name)


# Messages


def _managing(call: Call) -> Rules:
    """Check that the caller manages the access of the catalog, and return the rules."""
    require_roles(call, RoleName("", call.session.catalog.row), "")
    return permissions_of(call).rules


def _catalog_role(call: Call, request: Request) -> RoleName:
    return RoleName(request.params["catalog-role"], call.session.catalog.row)


def _found(rules: Rules, name: RoleName) -> AnyRole:
    catalog = None if name.catalog is None else name.catalog.entity_id
    for role in rules.roles.values():
        if role.name == name.name and getattr(role, "catalog", None) == catalog:
            return role
    raise NotFoundError(f"{name} does not exist")


def _create(call: Call, asked: ManagedRole, *, of_catalog: bool = False) -> Response:
    if asked.federated:
        raise BadRequestError(
            "federated roles are not supported; instead, configure a claim of the tokens that names roles"
        )
    name = RoleName(asked.name, call.session.catalog.row if of_catalog else None)
    require_roles(call, name, "PRINCIPAL_ROLE_CREATE")
    changed(call, CreateRole, name, asked.properties)
    return json_response(encode(_role(call.session.access.required(), name)), 201)


def _update(call: Call, name: RoleName, request: Request) -> Response:
    asked = decode(request.body, UpdateEntityRequest)
    require_roles(call, name, "PRINCIPAL_ROLE_FULL_METADATA")
    rules = call.session.access.required()
    pointer = _pointer_of_role(rules, _found(rules, name))
    _require_unchanged(str(name), pointer, asked.current_entity_version)
    changed(call, AlterRole, name, asked.properties, expected=pointer)
    return json_response(encode(_role(call.session.access.required(), name)))


def _drop(call: Call, name: RoleName) -> Response:
    require_roles(call, name, "PRINCIPAL_ROLE_DROP")
    changed(call, DropRole, name)
    return NO_CONTENT


def _pointer_of_role(rules: Rules, role: AnyRole) -> int:
    catalog = role.catalog if isinstance(role, CatalogRole) else None
    key = principal_role_key(role.name) if catalog is None else catalog_role_key(catalog, role.name)
    entry = rules.head.index(ROLES).get(key)
    return 0 if entry is None else entry.pointer


def _pointer_of_principal(rules: Rules, name: str) -> int:
    entry = rules.head.index(PRINCIPALS).get(principal_key(name))
    return 0 if entry is None else entry.pointer


def _role(rules: Rules, name: RoleName) -> ManagedRole:
    return _described_role(rules, _found(rules, name))


def _described_role(rules: Rules, role: AnyRole) -> ManagedRole:
    pointer = _pointer_of_role(rules, role)
    return ManagedRole(
        role.name,
        properties=role.properties,
        create_timestamp=role.created,
        last_update_timestamp=id_time_ms(pointer),
        entity_version=version_of(pointer),
    )


def _roles(rules: Rules, roles: Iterable[AnyRole]) -> Response:
    found = [_described_role(rules, role) for role in sorted(roles, key=lambda role: role.name)]
    return json_response(encode(ManagedRoles(found)))


def _principals(rules: Rules, principals: Iterable[Principal]) -> Response:
    present = sorted((one for one in principals if one.state != "dropped"), key=lambda one: one.name)
    return json_response(encode(ManagedPrincipals([_described(rules, one) for one in present])))


def _principal(call: Call, name: str) -> ManagedPrincipal:
    rules = call.session.access.required()
    found = rules.principals.get(name)
    if found is None or found.state == "dropped":
        raise NotFoundError(f"there is no principal {name!r}")
    return _described(rules, found)


def _described(rules: Rules, row: Principal) -> ManagedPrincipal:
    pointer = _pointer_of_principal(rules, row.name)
    return ManagedPrincipal(
        row.name, row.client_id, row.properties, row.created, id_time_ms(pointer), version_of(pointer)
    )


def _credentials(call: Call, rows: list[tuple[str, str, str | None]], status: int) -> Response:
    [(name, client_id, secret)] = rows
    credentials = ManagedCredentials(client_id, secret)
    return json_response(encode(PrincipalWithCredentials(_principal(call, name), credentials)), status)
