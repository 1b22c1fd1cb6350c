"""Securables: the objects on which privileges are granted. Entity ids identify them, so grants survive renames, and a
new table gets no grants of a dropped table with the same name.

| securable | bytes |
| --- | --- |
| the realm | `R` |
| a catalog | `C`, catalog's entity id |
| a branch | `B`, catalog's entity id, name of the branch in UTF-8 |
| a namespace, table or view | `E`, catalog's entity id, entity id |

Entity ids are 8 bytes. An entity has the same id on all branches, so a grant on a table holds on every branch.
"""

from __future__ import annotations

from typing import Final

from polaris_spark.catalog.rows import id_bytes

REALM: Final = b"R"
_CATALOG, _BRANCH, _ENTITY = b"C", b"B", b"E"


def catalog(entity_id: int) -> bytes:
    """Return the securable of a catalog."""
    return _CATALOG + id_bytes(entity_id)


def branch(catalog_id: int, name: str) -> bytes:
    """Return the securable of a branch of a catalog."""
    return _BRANCH + id_bytes(catalog_id) + name.encode()


def entity(catalog_id: int, entity_id: int) -> bytes:
    """Return the securable of a namespace, table or view of a catalog."""
    return _ENTITY + id_bytes(catalog_id) + id_bytes(entity_id)


def catalog_of(securable: bytes) -> int | None:
    """Return the entity id of a securable's catalog; None for the realm."""
    return None if securable == REALM else int.from_bytes(securable[1:9], "big")


def branch_of(securable: bytes) -> str | None:
    """Return the name of the branch if the securable is a branch; otherwise None."""
    return securable[9:].decode() if securable[:1] == _BRANCH else None


def entity_of(securable: bytes) -> int | None:
    """Return the entity id if the securable is a namespace, table or view; otherwise None."""
    return int.from_bytes(securable[9:17], "big") if securable[:1] == _ENTITY else None
