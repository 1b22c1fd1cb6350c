"""Messages of the management API for principals, roles and grants, as in the specification of Apache Polaris."""

from __future__ import annotations

import msgspec

from polaris_spark.extension.management import ManagementMessage


class ManagedPrincipal(ManagementMessage, frozen=True, gc=False):
    """A principal."""

    name: str
    client_id: str | None = None
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    create_timestamp: int | None = None
    """Time of the creation, in milliseconds since 1970."""
    last_update_timestamp: int | None = None
    """Time of the last change, in milliseconds since 1970."""
    entity_version: int | None = None
    """A number that is different after each change of the principal."""


class ManagedPrincipals(ManagementMessage, frozen=True, gc=False):
    """A list of principals."""

    principals: list[ManagedPrincipal]


class CreateManagedPrincipalRequest(ManagementMessage, frozen=True, gc=False):
    """A request to create a principal."""

    principal: ManagedPrincipal
    credential_rotation_required: bool = False
    """Whether the principal must rotate its credentials before it can do anything else."""


class ManagedCredentials(ManagementMessage, frozen=True, gc=False):
    """Credentials of a principal."""

    client_id: str
    client_secret: str | None = None
    """None if a repeated request did not make the credentials."""


class PrincipalWithCredentials(ManagementMessage, frozen=True, gc=False):
    """A principal with its new credentials, which are shown only once."""

    principal: ManagedPrincipal
    credentials: ManagedCredentials


class ResetManagedPrincipalRequest(ManagementMessage, frozen=True, gc=False):
    """A request to give a principal new credentials."""

    client_id: str | None = None
    client_secret: str | None = None


class ManagedRole(ManagementMessage, frozen=True, gc=False):
    """A principal role or catalog role."""

    name: str
    federated: bool = False
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    create_timestamp: int | None = None
    """Time of the creation, in milliseconds since 1970."""
    last_update_timestamp: int | None = None
    """Time of the last change, in milliseconds since 1970."""
    entity_version: int | None = None
    """A number that is different after each change of the role."""


class ManagedRoles(ManagementMessage, frozen=True, gc=False):
    """A list of roles."""

    roles: list[ManagedRole]


class PrincipalRoleRequest(ManagementMessage, frozen=True, gc=False):
    """A request to create or assign a principal role."""

    principal_role: ManagedRole


class CatalogRoleRequest(ManagementMessage, frozen=True, gc=False):
    """A request to create or assign a catalog role."""

    catalog_role: ManagedRole


class UpdateEntityRequest(ManagementMessage, frozen=True, gc=False):
    """A request to replace the properties of a principal or role."""

    current_entity_version: int
    properties: dict[str, str]


class GrantResource(ManagementMessage, frozen=True, gc=False):
    """A privilege on a catalog, namespace, table or view."""

    type: str
    privilege: str
    namespace: list[str] | None = None
    table_name: str | None = None
    view_name: str | None = None


class GrantResources(ManagementMessage, frozen=True, gc=False):
    """The grants of a catalog role."""

    grants: list[GrantResource]


class GrantRequest(ManagementMessage, frozen=True, gc=False):
    """A request to add or revoke a grant."""

    grant: GrantResource
