"""Procedures of access control: principals, roles, grants and owners, and why something is allowed or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.access.needs import Need, On
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure, Run, columns


def _lazily(name: str) -> Run:
    """Return a function that calls the function `name` of `jobs.access_calls`. That module is imported at the first
    call, because importing it takes long."""

    def run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
        from polaris_spark.jobs import access_calls

        found: Iterable[tuple[Any, ...]] = getattr(access_calls, name)(call, arguments)
        return found

    return run


_ON = Parameter("on", "STRING", "realm, catalog (the default), branch, namespace, table or view")
_NAME = Parameter("name", "STRING", "name of the branch, namespace, table or view, such as db.t")
_ROLE = Parameter(
    "role", "STRING", "the role: a principal role, or a role of this catalog as catalog.role", required=True
)
_PRIVILEGES = Parameter("privileges", "STRING", "privileges, separated by commas", required=True)
_PRIVILEGE = Parameter("privilege", "STRING", "a privilege", required=True)
_PRINCIPAL = Parameter("name", "STRING", "name of the principal", required=True)
_HOLDER = Parameter("holder", "STRING", "the principal or principal role", required=True)
_LIFETIME = Parameter("expires_after", "STRING", "time after which the principal expires, such as '90 d'")
_PROPERTIES = Parameter(
    "properties", "MAP<STRING,STRING>", "properties; they have no effect", takes_variables=False
)
_MUST_ROTATE = Parameter(
    "must_rotate", "BOOLEAN", "whether the principal must rotate its credentials before it does anything else"
)
_GRANTED = columns("role STRING, securable STRING, privilege STRING")
_SECRETS = columns("name STRING, client_id STRING, client_secret STRING")
_ASSIGNED = columns("role STRING, holder STRING, changed BOOLEAN")
_OWNER = columns("securable STRING, owner STRING")
_STATE = columns("name STRING, state STRING")
_MANAGES = (
    Need(
        "",
        On.OWN,
        why="CATALOG_MANAGE_ACCESS on the securable or above, or ownership; SERVICE_MANAGE_ACCESS for the realm",
    ),
)
_MANAGES_AUTHORIZER = (
    Need("", On.OWN, why="a grant of SERVICE_MANAGE_ACCESS on the realm, whatever the authorizer says"),
)
_OF_ROLES = (
    Need(
        "",
        On.OWN,
        why="the privilege on the realm for principal roles; CATALOG_MANAGE_ACCESS on the catalog for its roles",
    ),
)
_SEES = (Need("", On.OWN, why="nothing; the result contains only what the caller may see"),)


def _procedure(
    name: str, comment: str, parameters: tuple[Parameter, ...], columns: tuple[Column, ...], **rest: Any
) -> Procedure:
    return Procedure(
        name=name, comment=comment, parameters=parameters, columns=columns, over_http=True, **rest
    )


PROCEDURES = (
    _procedure(
        "set_authorizer",
        "Let an external authorizer decide in this realm, in place of grants and ownership.",
        (
            Parameter(
                "name",
                "STRING",
                "name of the authorizer in the settings of each process; by default, grants and ownership decide again",
            ),
        ),
        (Column("before", "STRING"), Column("authorizer", "STRING")),
        run=_lazily("set_authorizer"),
        needs=_MANAGES_AUTHORIZER,
    ),
    _procedure(
        "grant",
        "Grant privileges to a role.",
        (_PRIVILEGES, _ROLE, _ON, _NAME),
        _GRANTED,
        run=_lazily("grant"),
        needs=_MANAGES,
    ),
    _procedure(
        "revoke",
        "Revoke privileges that were granted to a role, by default all that it has on the securable.",
        (_ROLE, Parameter("privileges", "STRING", "privileges, separated by commas"), _ON, _NAME),
        _GRANTED,
        run=_lazily("revoke"),
        needs=_MANAGES,
    ),
    _procedure(
        "show_grants",
        "List the grants that the caller may see.",
        (_ROLE._replace(required=False),),
        _GRANTED,
        run=_lazily("show_grants"),
        needs=_SEES,
        only_reads=True,
    ),
    _procedure(
        "show_privileges",
        "List all privileges, where they can be granted, and what they imply.",
        (),
        columns("privilege STRING, meaning STRING, on STRING, implies STRING"),
        run=_lazily("show_privileges"),
        needs=_SEES,
        only_reads=True,
    ),
    _procedure(
        "who_can",
        "List the principals that hold a privilege on something, and why.",
        (_PRIVILEGE, _ON, _NAME),
        columns("principal STRING, role STRING, granted STRING, on STRING"),
        run=_lazily("who_can"),
        needs=_MANAGES,
        only_reads=True,
    ),
    _procedure(
        "explain_access",
        "Explain why a principal, by default the caller, has a privilege or lacks it.",
        (_PRIVILEGE, _ON, _NAME, Parameter("principal", "STRING", "the principal; by default, the caller")),
        columns("what STRING, text STRING, role STRING"),
        run=_lazily("explain"),
        needs=(Need("", On.OWN, why="nothing for oneself; as `who_can` for other principals"),),
        only_reads=True,
    ),
    _procedure(
        "create_principal",
        "Create a principal. The result has its credentials, which are shown only once.",
        (_PRINCIPAL, _LIFETIME, _MUST_ROTATE, _PROPERTIES),
        _SECRETS,
        run=_lazily("create_principal"),
        needs=(Need("PRINCIPAL_CREATE", On.REALM),),
    ),
    _procedure(
        "alter_principal",
        "Revoke a principal or make it active again, or change when it expires or its properties.",
        (_PRINCIPAL, Parameter("state", "STRING", "active or revoked"), _LIFETIME, _PROPERTIES),
        _STATE,
        run=_lazily("alter_principal"),
        needs=(Need("PRINCIPAL_WRITE_PROPERTIES", On.REALM),),
    ),
    _procedure(
        "drop_principal",
        "Drop a principal. Its name can never be used again.",
        (_PRINCIPAL,),
        _STATE,
        run=_lazily("drop_principal"),
        needs=(Need("PRINCIPAL_DROP", On.REALM),),
    ),
    _procedure(
        "show_principals",
        "List the principals.",
        (),
        columns("name STRING, client_id STRING, state STRING, created STRING, expires STRING, roles STRING"),
        run=_lazily("show_principals"),
        needs=(Need("PRINCIPAL_LIST", On.REALM),),
        only_reads=True,
    ),
    _procedure(
        "rotate_credentials",
        "Give the caller a new client secret, which is shown only once.",
        (Parameter("keep_old", "STRING", "time for which the old secret stays valid, such as '1 d'"),),
        _SECRETS,
        run=_lazily("rotate"),
        rotates=True,
        needs=(Need("", On.OWN, why="nothing; a principal rotates its own credentials"),),
    ),
    _procedure(
        "reset_credentials",
        "Give a principal a new client secret, which is shown only once, and end its old secrets and tokens.",
        (_PRINCIPAL, _MUST_ROTATE),
        _SECRETS,
        run=_lazily("reset"),
        needs=(Need("PRINCIPAL_RESET_CREDENTIALS", On.REALM),),
    ),
    _procedure(
        "revoke_tokens",
        "Make all tokens invalid that servers of the realm have issued, by removing the keys that signed them.",
        (),
        (Column("removed_keys", "INT"),),
        run=_lazily("revoke_tokens"),
        needs=(Need("SERVICE_MANAGE_ACCESS", On.REALM),),
    ),
    _procedure(
        "create_role",
        "Create a principal role, or a role of this catalog.",
        (
            _ROLE._replace(name="name"),
            Parameter("if_not_exists", "BOOLEAN", "whether to do nothing if the role exists"),
            _PROPERTIES,
        ),
        (Column("role", "STRING"),),
        run=_lazily("create_role"),
        needs=_OF_ROLES,
    ),
    _procedure(
        "drop_role",
        "Drop a role, with its grants.",
        (_ROLE._replace(name="name"),),
        (Column("role", "STRING"),),
        run=_lazily("drop_role"),
        needs=_OF_ROLES,
    ),
    _procedure(
        "show_roles",
        "List the roles that the caller may see, and their holders.",
        (),
        columns("role STRING, kind STRING, holders STRING"),
        run=_lazily("show_roles"),
        needs=_SEES,
        only_reads=True,
    ),
    _procedure(
        "assign_role",
        "Give a principal role to a principal, or a role of this catalog to a principal role.",
        (_ROLE, _HOLDER),
        _ASSIGNED,
        run=_lazily("assign"),
        needs=_OF_ROLES,
    ),
    _procedure(
        "revoke_role",
        "Take a role away from a principal or principal role.",
        (_ROLE, _HOLDER),
        _ASSIGNED,
        run=_lazily("revoke_role"),
        needs=_OF_ROLES,
    ),
    _procedure(
        "set_owner",
        "Give a catalog, branch, namespace, table or view to another owner.",
        (Parameter("owner", "STRING", "the principal", required=True), _ON, _NAME),
        _OWNER,
        run=_lazily("set_owner"),
        needs=_MANAGES,
    ),
    _procedure(
        "show_owner",
        "Show who owns a catalog, branch, namespace, table or view.",
        (_ON, _NAME),
        _OWNER,
        run=_lazily("show_owner"),
        needs=_SEES,
        only_reads=True,
    ),
)
"""The procedures of access control."""
