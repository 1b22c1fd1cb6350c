"""Reading principals and roles from the reference `access`."""

from __future__ import annotations

from collections.abc import Iterator

from polaris_spark.access.credentials import matching
from polaris_spark.access.rows import (
    ACCESS,
    ASSIGNMENTS,
    CATALOG_ROLE_KIND,
    CLIENTS,
    PRINCIPALS,
    ROLES,
    CatalogRole,
    HashedSecret,
    Principal,
    PrincipalRole,
    principal_key,
)
from polaris_spark.catalog.rows import id_bytes, id_from
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import NotAuthorizedError, ReferenceGoneError
from polaris_spark.index.keys import decode_key
from polaris_spark.system.registry import References


def access_head(references: References) -> CommitReader | None:
    """Read and return the newest commit of the reference `access`; None if the realm has no access control.

    Raises:
        ReferenceGoneError: the reference was dropped. This does not turn access control off: requests are refused.
    """
    if not references.is_open(ACCESS) and references.lookup(ACCESS) is None:
        return None  # one read; `references.read` would read the registry three times, and the handler below once more
    try:
        return references.read(ACCESS)
    except ReferenceGoneError:
        if references.lookup(ACCESS) is None:
            return None
        raise


def find_principal(head: CommitReader, name: str) -> Principal | None:
    """Return the principal of that name, in any state; None if there never was one."""
    found = head.index(PRINCIPALS).get(principal_key(name))
    return None if found is None else head.store.get(found.pointer, Principal)


def find_client(head: CommitReader, client_id: str) -> Principal | None:
    """Return the principal with that client id; None if there is none."""
    found = head.index(CLIENTS).get(client_id.encode(errors="surrogatepass"))
    entry = None if found is None else head.index(PRINCIPALS).get(found.value)
    return None if entry is None else head.store.get(entry.pointer, Principal)


def list_principals(head: CommitReader) -> list[Principal]:
    """Return all principals that are not dropped, sorted by name."""
    pointers = [entry.pointer for _, entry in head.index(PRINCIPALS).range()]
    found = head.store.get_many(pointers, Principal)
    return [found[id] for id in pointers if found[id].state != "dropped"]


def authenticate(
    head: CommitReader, client_id: str, secret: str, now_ms: int
) -> tuple[Principal, HashedSecret]:
    """Return the principal with these credentials, and its stored secret.

    Args:
        head: a commit of the reference `access`.
        now_ms: the time, in milliseconds since 1970.
    Raises:
        NotAuthorizedError: the credentials are wrong, or the principal is revoked or expired. The message does not say
            which.
    """
    found = find_client(head, client_id)
    own = matching(found, secret, now_ms)
    if own is None or found is None:
        raise NotAuthorizedError("the credentials are not valid: check client id and client secret")
    return found, own


def roles_of(head: CommitReader, principal: Principal) -> frozenset[str]:
    """Return the names of the principal roles that are assigned to a principal."""
    first, end = id_bytes(principal.entity_id), id_bytes(principal.entity_id + 1)
    assigned = {id_from(key[8:]) for key, _ in head.index(ASSIGNMENTS).range(first, end)}
    if not assigned:
        return frozenset()
    return frozenset(role.name for role in list_roles(head) if role.entity_id in assigned)


def list_roles(head: CommitReader) -> Iterator[PrincipalRole | CatalogRole]:
    """Yield all principal roles by name, then all catalog roles by catalog and name."""
    entries = list(head.index(ROLES).range())
    of_catalogs = [decode_key(key).kind == CATALOG_ROLE_KIND for key, _ in entries]
    pointers = [entry.pointer for _, entry in entries]
    principal_roles = head.store.get_many(
        [id for id, is_one in zip(pointers, of_catalogs, strict=True) if not is_one], PrincipalRole
    )
    catalog_roles = head.store.get_many(
        [id for id, is_one in zip(pointers, of_catalogs, strict=True) if is_one], CatalogRole
    )
    yield from principal_roles.values()
    yield from catalog_roles.values()
