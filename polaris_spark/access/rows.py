"""Rows of principals and roles, and the indexes of the reference `access`.

| index | key | pointer | value |
| --- | --- | --- | --- |
| `principals` | `entry_key((), b"p", name)` | `Principal` | entity id (8 bytes) |
| `clients` | client id, in UTF-8 | | key in `principals` |
| `roles` | `entry_key((), b"r", name)` | `PrincipalRole` | entity id (8 bytes) |
| | `entry_key((catalog id,), b"a", name)` | `CatalogRole` | entity id (8 bytes) |
| `assignments` | id of a principal or principal role, id of the role (8 bytes each) | | empty |
| `grants` | securable (`access.securables`), id of the role (8 bytes) | | names of privileges, separated by commas |
| `token-keys` | `entry_key((), b"k", id)` | `TokenKey` | entity id |
| `owners` | securable: a catalog or branch | | name of the principal |
| `authorizer` | `AUTHORIZER_KEY` | `ChosenAuthorizer` | empty |

A dropped principal keeps its row, in the state `dropped` and without secrets. So no other principal can get its name,
and the names in the log and of owners stay unambiguous.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final, Literal

import msgspec

from polaris_spark.catalog.catalogs.references import ACCESS as ACCESS
from polaris_spark.catalog.rows import OWNERS as OWNERS
from polaris_spark.index.keys import entry_key
from polaris_spark.objects import object_type

PRINCIPALS: Final = "principals"
CLIENTS: Final = "clients"
ROLES: Final = "roles"
ASSIGNMENTS: Final = "assignments"
GRANTS: Final = "grants"

TOKEN_KEYS: Final = "token-keys"
AUTHORIZER: Final = "authorizer"

PRINCIPAL_KIND: Final = b"p"
PRINCIPAL_ROLE_KIND: Final = b"r"
CATALOG_ROLE_KIND: Final = b"a"

TOKEN_KEY_KIND: Final = b"k"

AUTHORIZER_KEY: Final = entry_key((), b"z", "authorizer")

SERVICE_ADMIN: Final = "service_admin"
"""Name of the principal role that has all privileges on the realm. It exists in every realm with access control."""
CATALOG_ADMIN: Final = "catalog_admin"
"""Name of the catalog role that has all privileges on its catalog. It is created when it is first assigned."""


class HashedSecret(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client secret, hashed by scrypt (RFC 7914)."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"salt", "hash"})
    """Fields that are not shown by any command or view."""

    salt: bytes
    hash: bytes
    cost: int
    """Parameter N of scrypt."""
    block_size: int
    """Parameter r of scrypt."""
    parallel: int
    """Parameter p of scrypt."""
    created: int
    """Time at which the secret was made, in milliseconds since 1970."""
    expires: int = 0
    """Time after which the secret is not accepted, in milliseconds since 1970; 0 for never."""

    def __repr__(self) -> str:
        return _shown(self, self.HIDDEN)


@object_type("principal", revision=1)
class Principal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A user or program that can log in."""

    entity_id: int
    name: str
    client_id: str
    created: int
    """Time of the creation, in milliseconds since 1970."""
    state: Literal["active", "revoked", "dropped"] = "active"
    """A revoked principal cannot log in or send requests until it is made active again. A dropped principal stays
    dropped."""
    secrets: tuple[HashedSecret, ...] = ()
    """At most two secrets, the newest first. After a rotation, the old secret can be kept for some time."""
    valid_from: int = 0
    """Tokens that were issued before this time, in milliseconds since 1970, are not accepted. Set when credentials are
    reset or the principal is revoked."""
    expires: int = 0
    """Time after which the principal cannot log in or send requests, in milliseconds since 1970; 0 for never."""
    must_rotate: bool = False
    """Whether the principal can do nothing except rotate its credentials."""
    properties: dict[str, str] = {}

    def is_active(self, now_ms: int) -> bool:
        """Whether the principal may log in and send requests at the time `now_ms`, in milliseconds since 1970."""
        return self.state == "active" and not 0 < self.expires <= now_ms


@object_type("principal-role", revision=1)
class PrincipalRole(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A role that is assigned to principals. It can have grants on any securable of the realm, and can have catalog
    roles."""

    entity_id: int
    name: str
    created: int
    """Time of the creation, in milliseconds since 1970."""
    properties: dict[str, str] = {}


@object_type("catalog-role", revision=1)
class CatalogRole(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A role of one catalog, which is assigned to principal roles. It can have grants on the catalog and on everything
    in it."""

    entity_id: int
    catalog: int
    """Entity id of the catalog."""
    name: str
    created: int
    """Time of the creation, in milliseconds since 1970."""
    properties: dict[str, str] = {}


@object_type("token-key", revision=1)
class TokenKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key that signs access tokens (`access.token_keys`)."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"salt", "sealed"})
    """Fields that are not shown by any command or view."""

    entity_id: int
    id: str
    """The header `kid` of the tokens that the key signs."""
    created: int
    """Time at which the key was made, in milliseconds since 1970."""
    public: bytes
    """Public key of Ed25519 (RFC 8032), 32 bytes."""
    salt: bytes
    """Salt of scrypt, which derives the sealing key from the server key."""
    sealed: bytes
    """Private key, encrypted by AES-256-GCM: nonce (12 bytes), then ciphertext and tag."""

    def __repr__(self) -> str:
        return _shown(self, self.HIDDEN)


@object_type("authorizer", revision=1)
class ChosenAuthorizer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The external authorizer that decides about requests in the realm (`access.authorizers`)."""

    name: str
    """Name in the settings of each process."""


def _shown(row: msgspec.Struct, hidden: Collection[str]) -> str:
    """Return a text that describes a row, for messages and debuggers, without its secret fields."""
    fields = (one for one in row.__struct_fields__ if one not in hidden)
    return f"{type(row).__name__}({', '.join(f'{one}={getattr(row, one)!r}' for one in fields)})"


def principal_key(name: str) -> bytes:
    """Return the key of a principal in the index `principals`."""
    return entry_key((), PRINCIPAL_KIND, name)


def principal_role_key(name: str) -> bytes:
    """Return the key of a principal role in the index `roles`."""
    return entry_key((), PRINCIPAL_ROLE_KIND, name)


def catalog_role_key(catalog: int, name: str) -> bytes:
    """Return the key of a catalog role in the index `roles`.

    Args:
        catalog: entity id of the catalog.
    """
    return entry_key((f"{catalog:x}",), CATALOG_ROLE_KIND, name)


def token_key_key(id: str) -> bytes:
    """Return the key of a token key in the index `token-keys`."""
    return entry_key((), TOKEN_KEY_KIND, id)
