"""Routes of principals, roles and grants that are compatible with the management API of Apache Polaris
(https://github.com/apache/polaris/blob/main/spec/polaris-management-service.yml)."""

from __future__ import annotations

from polaris_spark.access.needs import Need, Needs, On
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.extension.management_messages import (
    CatalogRoleRequest,
    CreateManagedPrincipalRequest,
    GrantRequest,
    GrantResources,
    ManagedPrincipal,
    ManagedPrincipals,
    ManagedRole,
    ManagedRoles,
    PrincipalRoleRequest,
    PrincipalWithCredentials,
    UpdateEntityRequest,
)
from polaris_spark.rest.access import Role
from polaris_spark.rest.request import Request, Response
from polaris_spark.rest.router import MANAGEMENT, Route


def _on_realm(*privileges: str) -> Needs:
    return (Need("", On.OWN, why=f"{' and '.join(f'`{one}`' for one in privileges)} on the realm"),)


_OWN = (Need("", On.OWN, why="nothing; a principal rotates its own credentials"),)
_ON_CATALOG = (Need("", On.OWN, why="`CATALOG_MANAGE_ACCESS` on the named catalog"),)
_ON_SECURABLE = (Need("", On.OWN, why="`CATALOG_MANAGE_ACCESS` on the securable or above, or ownership"),)
_OF_ROLE = "principal-roles/{role}/catalog-roles/{catalog}"
_CATALOG_ROLE = "catalogs/{catalog}/catalog-roles/{catalog-role}"
_ASSIGNS = _on_realm("SERVICE_MANAGE_ACCESS")


def _route(
    method: str,
    path: str,
    name: str,
    needs: Needs,
    *,
    body: type | None = None,
    result: type | None = None,
    query: tuple[str, ...] = (),
) -> Route:
    """Return a route. The function `name` of `managed_access` answers it. That module is imported at the first request,
    because importing it takes long."""

    def answer(catalog: Catalog, request: Request) -> Response:
        from polaris_spark.extension import managed_access

        found: Response = getattr(managed_access, name)(catalog, request)
        return found

    return Route(method, path, answer, MANAGEMENT, Role.ADMINISTRATOR, body, result, query, needs)


ROUTES = (
    _route("GET", "principals", "list_principals", _on_realm("PRINCIPAL_LIST"), result=ManagedPrincipals),
    _route(
        "POST",
        "principals",
        "create_principal",
        _on_realm("PRINCIPAL_CREATE"),
        body=CreateManagedPrincipalRequest,
        result=PrincipalWithCredentials,
    ),
    _route(
        "GET",
        "principals/{principal}",
        "get_principal",
        _on_realm("PRINCIPAL_READ_PROPERTIES"),
        result=ManagedPrincipal,
    ),
    _route(
        "PUT",
        "principals/{principal}",
        "update_principal",
        _on_realm("PRINCIPAL_WRITE_PROPERTIES"),
        body=UpdateEntityRequest,
        result=ManagedPrincipal,
    ),
    _route("DELETE", "principals/{principal}", "drop_principal", _on_realm("PRINCIPAL_DROP")),
    _route(
        "POST", "principals/{principal}/rotate", "rotate_credentials", _OWN, result=PrincipalWithCredentials
    ),
    _route(
        "POST",
        "principals/{principal}/reset",
        "reset_credentials",
        _on_realm("PRINCIPAL_RESET_CREDENTIALS"),
        result=PrincipalWithCredentials,
    ),
    _route(
        "GET",
        "principals/{principal}/principal-roles",
        "list_roles_of_principal",
        _on_realm("PRINCIPAL_READ_PROPERTIES", "PRINCIPAL_ROLE_LIST"),
        result=ManagedRoles,
    ),
    _route(
        "PUT",
        "principals/{principal}/principal-roles",
        "assign_principal_role",
        _ASSIGNS,
        body=PrincipalRoleRequest,
    ),
    _route("DELETE", "principals/{principal}/principal-roles/{role}", "revoke_principal_role", _ASSIGNS),
    _route(
        "GET",
        "principal-roles",
        "list_principal_roles",
        _on_realm("PRINCIPAL_ROLE_LIST"),
        result=ManagedRoles,
    ),
    _route(
        "POST",
        "principal-roles",
        "create_principal_role",
        _on_realm("PRINCIPAL_ROLE_CREATE"),
        body=PrincipalRoleRequest,
        result=ManagedRole,
    ),
    _route(
        "GET",
        "principal-roles/{role}",
        "get_principal_role",
        _on_realm("PRINCIPAL_ROLE_LIST"),
        result=ManagedRole,
    ),
    _route(
        "PUT",
        "principal-roles/{role}",
        "update_principal_role",
        _on_realm("PRINCIPAL_ROLE_FULL_METADATA"),
        body=UpdateEntityRequest,
        result=ManagedRole,
    ),
    _route("DELETE", "principal-roles/{role}", "drop_principal_role", _on_realm("PRINCIPAL_ROLE_DROP")),
    _route(
        "GET",
        "principal-roles/{role}/principals",
        "list_principals_of_role",
        _on_realm("PRINCIPAL_ROLE_LIST", "PRINCIPAL_LIST"),
        result=ManagedPrincipals,
    ),
    _route("GET", _OF_ROLE, "list_catalog_roles_of_role", _ON_CATALOG, result=ManagedRoles),
    _route("PUT", _OF_ROLE, "assign_catalog_role", _ON_CATALOG, body=CatalogRoleRequest),
    _route("DELETE", f"{_OF_ROLE}/{{catalog-role}}", "revoke_catalog_role", _ON_CATALOG),
    _route("GET", "catalogs/{catalog}/catalog-roles", "list_catalog_roles", _ON_CATALOG, result=ManagedRoles),
    _route(
        "POST",
        "catalogs/{catalog}/catalog-roles",
        "create_catalog_role",
        _ON_CATALOG,
        body=CatalogRoleRequest,
        result=ManagedRole,
    ),
    _route("GET", _CATALOG_ROLE, "get_catalog_role", _ON_CATALOG, result=ManagedRole),
    _route(
        "PUT",
        _CATALOG_ROLE,
        "update_catalog_role",
        _ON_CATALOG,
        body=UpdateEntityRequest,
        result=ManagedRole,
    ),
    _route("DELETE", _CATALOG_ROLE, "drop_catalog_role", _ON_CATALOG),
    _route(
        "GET",
        f"{_CATALOG_ROLE}/principal-roles",
        "list_roles_of_catalog_role",
        _ON_CATALOG,
        result=ManagedRoles,
    ),
    _route("GET", f"{_CATALOG_ROLE}/grants", "list_grants", _ON_CATALOG, result=GrantResources),
    _route("PUT", f"{_CATALOG_ROLE}/grants", "add_grant", _ON_SECURABLE, body=GrantRequest),
    _route(
        "POST",
        f"{_CATALOG_ROLE}/grants",
        "revoke_grant",
        _ON_SECURABLE,
        body=GrantRequest,
        query=("cascade",),
    ),
)
