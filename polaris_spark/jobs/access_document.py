"""Principals, roles and grants as a YAML document: export a document, and compute the changes that apply one.

A document contains the principals and roles of the realm and the roles of one catalog, without secrets. Applying it
changes the principals and roles that it names, and no others.

    principals:
      ann: {state: active, roles: [analysts]}
    principal-roles:
      analysts:
        catalog-roles: [readers]
        grants: [{securable: table, name: shop.orders, privileges: [TABLE_READ_DATA]}]
    catalog-roles:
      readers:
        grants: [{securable: catalog, privileges: [TABLE_LIST]}]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from polaris_spark.access import securables
from polaris_spark.access.changes import AccessChange, Assign, CreateRole, RoleName
from polaris_spark.access.credentials import Credentials
from polaris_spark.access.grant_changes import Grant
from polaris_spark.access.principal_changes import AlterPrincipal, CreatePrincipal
from polaris_spark.access.rows import CATALOG_ADMIN, SERVICE_ADMIN, CatalogRole, PrincipalRole
from polaris_spark.access.rules import Rules
from polaris_spark.catalog.rows import IDS, id_bytes
from polaris_spark.errors import InputError
from polaris_spark.index.keys import decode_key
from polaris_spark.jobs.access_calls import permissions_of, target_of
from polaris_spark.jobs.procedure import Call
from polaris_spark.names import sql_name
from polaris_spark.rest.permissions import Permissions

_KINDS = {b"n": "namespace", b"t": "table", b"v": "view"}


class GrantEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Privileges on one securable."""

    securable: Literal["realm", "catalog", "branch", "namespace", "table", "view"]
    privileges: list[str]
    name: str | None = None


class RoleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="kebab"):
    """A role. Only principal roles have catalog roles."""

    catalog_roles: list[str] = []
    grants: list[GrantEntry] = []


class PrincipalEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A principal."""

    state: Literal["active", "revoked"] = "active"
    roles: list[str] = []


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="kebab"):
    """A document."""

    principals: dict[str, PrincipalEntry] = {}
    principal_roles: dict[str, RoleEntry] = {}
    catalog_roles: dict[str, RoleEntry] = {}


class Step(NamedTuple):
    """One change: its description, and the change of the rules to commit."""

    words: str
    change: AccessChange[Any]


def parse(text: str) -> Document:
    """Return a document from its YAML text.

    Raises:
        InputError: the text is not YAML, or has another form.
    """
    import yaml

    try:
        return msgspec.convert(yaml.safe_load(text) or {}, Document)
    except yaml.YAMLError as error:
        raise InputError(f"the document is not YAML: {error}") from None
    except msgspec.ValidationError as error:
        raise InputError(f"the document has a wrong form: {error}") from None


def text_of(document: Document) -> str:
    """Return a document as YAML text, ordered by name."""
    import yaml

    text: str = yaml.safe_dump(msgspec.to_builtins(document), sort_keys=True, allow_unicode=True)
    return text


def exported(call: Call) -> Document:
    """Return the principals and roles of the realm, and the roles and grants of the session's catalog.

    Raises:
        ForbiddenError: the caller may not manage access of the realm.
    """
    permissions = _administrator(call)
    rules, catalog = permissions.rules, permissions.catalog.row.entity_id
    principals = {
        name: PrincipalEntry(
            "revoked" if row.state == "revoked" else "active",
            sorted(role.name for role in rules.roles_of(row.entity_id)),
        )
        for name, row in rules.principals.items()
        if row.state != "dropped"
    }
    of_realm, of_catalog = {}, {}
    for role in rules.principal_roles():
        has = [one for one in rules.roles_of(role.entity_id) if getattr(one, "catalog", None) == catalog]
        of_realm[role.name] = RoleEntry(sorted(one.name for one in has), _grants(permissions, role))
    for one in rules.catalog_roles(catalog):
        of_catalog[one.name] = RoleEntry([], _grants(permissions, one))
    return Document(principals, of_realm, of_catalog)


def _administrator(call: Call) -> Permissions:
    permissions = permissions_of(call)
    permissions.require_base("SERVICE_MANAGE_ACCESS", (securables.REALM,), "the realm")
    return permissions


def _is_built_in(role: PrincipalRole | CatalogRole) -> bool:
    return role.name == (SERVICE_ADMIN if isinstance(role, PrincipalRole) else CATALOG_ADMIN)


def _grants(permissions: Permissions, role: PrincipalRole | CatalogRole) -> list[GrantEntry]:
    """Return the grants of a role. Grants on other catalogs, and on entities that are not in the session's state, are
    left out."""
    if _is_built_in(role):
        return []
    found = []
    for securable, privileges in permissions.rules.grants.get(role.entity_id, {}).items():
        named = _named(permissions, securable)
        if named is not None:
            found.append(GrantEntry(named[0], sorted(privileges), named[1]))
    return sorted(found, key=lambda one: (one.securable, one.name or ""))


def _named(permissions: Permissions, securable: bytes) -> tuple[Any, str | None] | None:
    """Return the kind and the name of a securable; None if it belongs to another catalog than the session's, or is an
    entity that is not in the session's state."""
    if securable == securables.REALM:
        return "realm", None
    if securables.catalog_of(securable) != permissions.catalog.row.entity_id:
        return None
    branch, entity = securables.branch_of(securable), securables.entity_of(securable)
    if branch is not None:
        return "branch", branch
    if entity is None:
        return "catalog", None
    entry = permissions.head.index(IDS).get(id_bytes(entity))
    if entry is None:
        return None
    path, kind, name = decode_key(entry.value)
    return _KINDS[kind], sql_name((*path, name))


def steps(call: Call, document: Document) -> list[Step]:
    """Return the changes that apply a document. Nothing is changed yet.

    Raises:
        InputError, BadRequestError, NotFoundError: the document names something that does not exist, or a value is not
            allowed.
        ForbiddenError: the caller may not manage access of the realm.
    """
    return list(_Plan(call, document).steps())


class _Plan:
    def __init__(self, call: Call, document: Document) -> None:
        self._call = call
        self._document = document
        self._permissions = _administrator(call)
        self._rules: Rules = self._permissions.rules
        self._row = self._permissions.catalog.row
        self._roles: dict[bytes, tuple[int, RoleName]] = {}
        """Entity id and name of each role of the realm and the catalog, by key."""
        for id, role in self._rules.roles.items():
            if getattr(role, "catalog", self._row.entity_id) == self._row.entity_id:
                named = RoleName(role.name, self._row if isinstance(role, CatalogRole) else None)
                self._roles[named.key] = id, named

    def steps(self) -> Iterator[Step]:
        document = self._document
        of_realm = [(RoleName(name), one) for name, one in document.principal_roles.items()]
        of_catalog = [(RoleName(name, self._row), one) for name, one in document.catalog_roles.items()]
        for role, _ in (*of_realm, *of_catalog):
            if role.key not in self._roles:
                yield self._step(f"create {role}", CreateRole, role, if_missing=True)
        for name, principal in document.principals.items():
            yield from self._principal(name, principal)
        for role, entry in of_realm:
            wanted = [RoleName(one, self._row) for one in entry.catalog_roles]
            yield from self._assignments(role.name, self._id(role), wanted, is_role=True)
        for role, entry in (*of_realm, *of_catalog):
            yield from self._grants(role, entry)

    def _id(self, role: RoleName) -> int | None:
        """Return the entity id of a role; None if it does not exist yet."""
        found = self._roles.get(role.key)
        return None if found is None else found[0]

    def _step(self, words: str, cls: type[AccessChange[Any]], *arguments: Any, **keywords: Any) -> Step:
        session = self._call.session
        change = cls(session.connection.clock, session.operation(), *arguments, **keywords)
        return Step(words, change)

    def _principal(self, name: str, entry: PrincipalEntry) -> Iterator[Step]:
        row = self._rules.principals.get(name)
        if row is None:
            yield self._step(f"create principal {name}", CreatePrincipal, name, Credentials.new())
        if row is not None and row.state == "dropped":
            raise InputError(f"principal {name!r} was dropped; its name cannot be used again")
        if (row is None and entry.state != "active") or (row is not None and row.state != entry.state):
            yield self._step(f"make principal {name} {entry.state}", AlterPrincipal, name, state=entry.state)
        wanted = [RoleName(one) for one in entry.roles]
        yield from self._assignments(name, None if row is None else row.entity_id, wanted, is_role=False)

    def _assignments(
        self, holder: str, id: int | None, wanted: list[RoleName], *, is_role: bool
    ) -> Iterator[Step]:
        there = {
            key: role
            for key, (role_id, role) in self._roles.items()
            if id is not None
            and (role.catalog is not None) == is_role
            and id in self._rules.holders_of(role_id)
        }
        of = {"principal_role": holder} if is_role else {"principal": holder}
        for role in wanted:
            if role.key in there:
                del there[role.key]
                continue
            yield self._step(f"give {role} to {holder}", Assign, role, **of)
        for role in there.values():
            yield self._step(f"take {role} from {holder}", Assign, role, revoke=True, **of)

    def _grants(self, role: RoleName, entry: RoleEntry) -> Iterator[Step]:
        id = self._id(role)
        row = None if id is None else self._rules.roles[id]
        if row is not None and _is_built_in(row):
            return
        there = {} if id is None else dict(self._rules.grants.get(id, {}))
        for grant in entry.grants:
            arguments = {"on": grant.securable} | ({} if grant.name is None else {"name": grant.name})
            target = target_of(self._call, arguments)
            before, after = there.pop(target.securable, frozenset()), frozenset(grant.privileges)
            for privileges, revoke in ((after - before, False), (before - after, True)):
                if privileges:
                    yield self._grant(role, target.securable, target.described, privileges, revoke=revoke)
        for securable, privileges in there.items():
            named = _named(self._permissions, securable)
            if named is not None:  # grants that the export does not show stay
                described = " ".join(one for one in named if one)
                yield self._grant(role, securable, described, privileges, revoke=True)

    def _grant(
        self, role: RoleName, securable: bytes, described: str, privileges: frozenset[str], *, revoke: bool
    ) -> Step:
        verb, to = ("revoke", "from") if revoke else ("grant", "to")
        some = sorted(privileges)
        return self._step(
            f"{verb} {', '.join(some)} on {described} {to} {role}",
            Grant,
            role,
            securable,
            some,
            described=described,
            revoke=revoke,
        )
