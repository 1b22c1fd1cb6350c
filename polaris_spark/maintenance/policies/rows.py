"""Rows of the policies of a catalog, and the indexes of the reference `cat/<id>/policies`.

| index | key | pointer | value |
| --- | --- | --- | --- |
| `policies` | entity id of the namespace (8 bytes), name in UTF-8 | `StoredPolicy` | id of the policy |
| `ids` | id of a policy (8 bytes) | | its key in `policies` |
| `mappings` | entity id of a target, id of a policy (8 bytes each) | | parameters as JSON |
| `targets` | id of a policy, entity id of a target (8 bytes each) | | empty |

Targets are the catalog, namespaces and tables. Entity ids identify namespaces and targets, so policies survive renames.
"""

from __future__ import annotations

from typing import Final

import msgspec

from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.objects import object_type

POLICIES: Final = "policies"
IDS: Final = "ids"
MAPPINGS: Final = "mappings"
TARGETS: Final = "targets"


@object_type("policy", revision=1)
class StoredPolicy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A policy."""

    id: int
    namespace: int
    """Entity id of its namespace."""
    name: str
    type: str
    content: str
    """JSON text, as the client gave it."""
    description: str = ""
    version: int = 0
    """Number of updates."""
    created_ms: int = 0
    """Time of the creation, in milliseconds since 1970."""
    updated_ms: int = 0
    """Time of the last update, in milliseconds since 1970."""
    created_by: str = ""
    updated_by: str = ""


def policies_reference(row: CatalogRow) -> str:
    """Return the name of the reference that holds the policies of a catalog."""
    return f"cat/{row.entity_id:x}/policies"
