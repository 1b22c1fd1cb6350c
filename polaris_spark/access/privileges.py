"""All privileges: what each allows, which privileges imply it, and on which securables it can be granted.

Privileges that also exist in Apache Polaris have the same names there. A request is allowed if one of the caller's
active roles holds the needed privilege, or one that implies it, on the securable or on any securable above it. Grants
are the only rules: there are no denials.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from polaris_spark.access import securables
from polaris_spark.errors import BadRequestError


class Privilege(NamedTuple):
    """What a privilege allows, which privileges imply it, and on which securables it can be granted."""

    meaning: str
    by: tuple[str, ...] = ()
    """Privileges that imply this one."""
    on: str = "RCBE"
    """Kinds of securables that it can be granted on: the realm (R), a catalog (C), a branch (B), or a namespace, table
    or view (E)."""


_IN_REALM, _IN_CATALOGS = "R", "RC"
_BRANCHED = "RCB"

PRIVILEGES: Final[dict[str, Privilege]] = {
    "SERVICE_MANAGE_ACCESS": Privilege(
        "Manage principals, principal roles, and all grants of the realm.", (), _IN_REALM
    ),
    "PRINCIPAL_CREATE": Privilege("Create principals.", ("PRINCIPAL_FULL_METADATA",), _IN_REALM),
    "PRINCIPAL_LIST": Privilege(
        "List principals.",
        (
            "PRINCIPAL_CREATE",
            "PRINCIPAL_READ_PROPERTIES",
            "PRINCIPAL_WRITE_PROPERTIES",
            "PRINCIPAL_FULL_METADATA",
        ),
        _IN_REALM,
    ),
    "PRINCIPAL_READ_PROPERTIES": Privilege(
        "Read principals.", ("PRINCIPAL_WRITE_PROPERTIES", "PRINCIPAL_FULL_METADATA"), _IN_REALM
    ),
    "PRINCIPAL_WRITE_PROPERTIES": Privilege(
        "Change and revoke principals.", ("PRINCIPAL_FULL_METADATA",), _IN_REALM
    ),
    "PRINCIPAL_DROP": Privilege("Drop principals.", ("PRINCIPAL_FULL_METADATA",), _IN_REALM),
    "PRINCIPAL_RESET_CREDENTIALS": Privilege(
        "Reset the credentials of principals.", ("SERVICE_MANAGE_ACCESS",), _IN_REALM
    ),
    "PRINCIPAL_FULL_METADATA": Privilege(
        "Create, read, change and drop principals.", ("SERVICE_MANAGE_ACCESS",), _IN_REALM
    ),
    "PRINCIPAL_ROLE_CREATE": Privilege(
        "Create principal roles.", ("PRINCIPAL_ROLE_FULL_METADATA",), _IN_REALM
    ),
    "PRINCIPAL_ROLE_LIST": Privilege(
        "List and read principal roles.", ("PRINCIPAL_ROLE_CREATE", "PRINCIPAL_ROLE_FULL_METADATA"), _IN_REALM
    ),
    "PRINCIPAL_ROLE_DROP": Privilege("Drop principal roles.", ("PRINCIPAL_ROLE_FULL_METADATA",), _IN_REALM),
    "PRINCIPAL_ROLE_FULL_METADATA": Privilege(
        "Create, read, change and drop principal roles.", ("SERVICE_MANAGE_ACCESS",), _IN_REALM
    ),
    "CATALOG_CREATE": Privilege(
        "Create catalogs.", ("CATALOG_FULL_METADATA", "SERVICE_MANAGE_ACCESS"), _IN_REALM
    ),
    "CATALOG_DROP": Privilege(
        "Drop catalogs.", ("CATALOG_FULL_METADATA", "SERVICE_MANAGE_ACCESS"), _IN_CATALOGS
    ),
    "CATALOG_LIST": Privilege(
        "List catalogs.",
        ("CATALOG_CREATE", "CATALOG_READ_PROPERTIES", "CATALOG_WRITE_PROPERTIES", "CATALOG_FULL_METADATA"),
        _IN_CATALOGS,
    ),
    "CATALOG_READ_PROPERTIES": Privilege(
        "Read the properties of catalogs.",
        ("CATALOG_WRITE_PROPERTIES", "CATALOG_MANAGE_METADATA", "CATALOG_FULL_METADATA"),
        _IN_CATALOGS,
    ),
    "CATALOG_WRITE_PROPERTIES": Privilege(
        "Change the properties of catalogs.",
        ("CATALOG_MANAGE_METADATA", "CATALOG_FULL_METADATA"),
        _IN_CATALOGS,
    ),
    "CATALOG_FULL_METADATA": Privilege(
        "Create, read, change and drop catalogs.", ("SERVICE_MANAGE_ACCESS",), _IN_CATALOGS
    ),
    "CATALOG_MANAGE_ACCESS": Privilege(
        "Manage the grants on a securable and on everything in it; for a catalog, also its roles.",
        ("SERVICE_MANAGE_ACCESS",),
        "RCE",
    ),
    "CATALOG_MANAGE_CONTENT": Privilege(
        "Do everything with namespaces, tables, views, policies and branches of the catalog.", (), _BRANCHED
    ),
    "CATALOG_MANAGE_METADATA": Privilege(
        "Do everything with namespaces, tables, views, policies and branches, except read and write data.",
        ("CATALOG_MANAGE_CONTENT",),
        _BRANCHED,
    ),
    "CATALOG_MAINTAIN": Privilege(
        "Run maintenance jobs: expiry, sweeps, trims, removal of orphans, checks.", (), _IN_CATALOGS
    ),
    "CATALOG_READ_LOG": Privilege(
        "Read the log of changes, the feed and the system views of a catalog.",
        ("CATALOG_MANAGE_METADATA", "CATALOG_MAINTAIN"),
        _IN_CATALOGS,
    ),
}


_LOWER: Final = {"CATALOG": "catalogs", "NAMESPACE": "namespaces", "TABLE": "tables"}


def _add_content(kind: str, *, has_data: bool) -> None:
    lower = {"NAMESPACE": "namespaces", "TABLE": "tables", "VIEW": "views", "POLICY": "policies"}[kind]
    written_by = f"{kind}_WRITE" if kind == "POLICY" else f"{kind}_WRITE_PROPERTIES"
    writes = (written_by,)
    data = ("TABLE_READ_DATA", "TABLE_WRITE_DATA") if has_data else ()
    written = ("TABLE_WRITE_DATA",) if has_data else ()
    full = f"{kind}_FULL_METADATA"
    reads = "READ" if kind == "POLICY" else "READ_PROPERTIES"  # the names that Polaris uses
    PRIVILEGES[full] = Privilege(f"Create, read, change and drop {lower}.", ("CATALOG_MANAGE_METADATA",))
    PRIVILEGES[f"{kind}_CREATE"] = Privilege(f"Create {lower}.", (full,))
    PRIVILEGES[f"{kind}_DROP"] = Privilege(f"Drop {lower}.", (full,))
    PRIVILEGES[f"{kind}_LIST"] = Privilege(
        f"List {lower}.", (f"{kind}_CREATE", f"{kind}_{reads}", *writes, *data, full)
    )
    PRIVILEGES[f"{kind}_{reads}"] = Privilege(f"Load {lower}, without data.", (*writes, *data, full))
    PRIVILEGES[written_by] = Privilege(f"Change the metadata of {lower}.", (*written, full))


_add_content("NAMESPACE", has_data=False)
_add_content("TABLE", has_data=True)
_add_content("VIEW", has_data=False)
_add_content("POLICY", has_data=False)
PRIVILEGES["TABLE_READ_DATA"] = Privilege(
    "Read the data of tables.", ("TABLE_WRITE_DATA", "CATALOG_MANAGE_CONTENT")
)
PRIVILEGES["TABLE_WRITE_DATA"] = Privilege("Read and write the data of tables.", ("CATALOG_MANAGE_CONTENT",))
for _kind, _meaning in (("ATTACH", "Attach"), ("DETACH", "Detach")):
    PRIVILEGES[f"POLICY_{_kind}"] = Privilege(f"{_meaning} policies.", ("POLICY_FULL_METADATA",))
    for _target, _whole in (
        ("CATALOG", ""),
        ("NAMESPACE", "NAMESPACE_FULL_METADATA"),
        ("TABLE", "TABLE_FULL_METADATA"),
    ):
        PRIVILEGES[f"{_target}_{_kind}_POLICY"] = Privilege(
            f"{_meaning} policies {'to' if _kind == 'ATTACH' else 'from'} {_LOWER[_target]}.",
            tuple(filter(None, ("CATALOG_MANAGE_METADATA", _whole))),
            _BRANCHED if _target == "CATALOG" else "RCBE",
        )
PRIVILEGES["BRANCH_FULL_METADATA"] = Privilege(
    "Create, list, change, merge and drop branches and tags.", ("CATALOG_MANAGE_METADATA",), _BRANCHED
)
PRIVILEGES["BRANCH_CREATE"] = Privilege("Create branches and tags.", ("BRANCH_FULL_METADATA",), _BRANCHED)
PRIVILEGES["BRANCH_DROP"] = Privilege(
    "Drop branches and tags, and restore dropped ones.", ("BRANCH_FULL_METADATA",), _BRANCHED
)
PRIVILEGES["BRANCH_WRITE_PROPERTIES"] = Privilege(
    "Rename, move and protect branches, and change their checks and comments.",
    ("BRANCH_FULL_METADATA",),
    _BRANCHED,
)
PRIVILEGES["BRANCH_MERGE"] = Privilege(
    "Merge into a branch, and revert and cherry-pick on it.", ("BRANCH_FULL_METADATA",), _BRANCHED
)
PRIVILEGES["BRANCH_LIST"] = Privilege(
    "List and describe branches and tags.",
    (
        "BRANCH_CREATE",
        "BRANCH_DROP",
        "BRANCH_WRITE_PROPERTIES",
        "BRANCH_MERGE",
        "BRANCH_FULL_METADATA",
        "CATALOG_READ_LOG",
    ),
    _BRANCHED,
)

ALL: Final = frozenset(PRIVILEGES)
"""All privileges. `service_admin` has them on the realm, `catalog_admin` on its catalog, and an owner on the securables
that it owns."""


SEES_NAMESPACE: Final = "sees namespaces"
SEES_TABLE: Final = "sees tables"
SEES_VIEW: Final = "sees views"
"""Marks that `implied` adds to privileges on namespaces, tables or views: the existence of these is not hidden from the
caller. A caller that sees tables or views in a namespace also sees the namespace. Marks are not privileges, so they
cannot be granted."""
_SEEN: Final = {
    "NAMESPACE": SEES_NAMESPACE,
    "TABLE": SEES_TABLE,
    "VIEW": SEES_VIEW,
    "POLICY": SEES_NAMESPACE,
}


@lru_cache(maxsize=4_096)
def implied(privileges: frozenset[str]) -> frozenset[str]:
    """Return the given privileges, all privileges that they imply, and the marks (`SEES_NAMESPACE`, `SEES_TABLE`,
    `SEES_VIEW`) of all these. Privileges that this release does not know imply nothing."""
    found, pending = set(privileges), list(privileges)
    while pending:
        one = pending.pop()
        for name in _IMPLIED.get(one, ()):
            if name not in found:
                found.add(name)
                pending.append(name)
    found |= {_SEEN[name.partition("_")[0]] for name in found if name.partition("_")[0] in _SEEN}
    if "CATALOG_MANAGE_METADATA" in found:
        found |= {SEES_TABLE, SEES_VIEW}
    if found.intersection((SEES_TABLE, SEES_VIEW)):
        found.add(SEES_NAMESPACE)
    return frozenset(found)


def holders(privilege: str) -> list[str]:
    """Return a list of a privilege, followed by all privileges that imply it."""
    others = [name for name in PRIVILEGES if name != privilege and privilege in implied(frozenset((name,)))]
    return [privilege, *others]


_IMPLIED: dict[str, list[str]] = {}
for _name, _one in PRIVILEGES.items():
    for _stronger in _one.by:
        _IMPLIED.setdefault(_stronger, []).append(_name)


_LABELS: Final = {"R": "the realm", "C": "a catalog", "B": "a branch", "E": "a namespace, table or view"}


def require_known(privileges: Iterable[str], securable: bytes) -> None:
    """Check that privileges exist and can be granted on a securable.

    Raises:
        BadRequestError: a privilege is unknown or cannot be granted on such a securable, or no privilege is given.
    """
    given: Collection[str] = list(privileges)
    if not given:
        raise BadRequestError("no privilege is given; name at least one")
    kind = securable[:1].decode()
    for name in given:
        known = PRIVILEGES.get(name)
        if known is None:
            near = difflib.get_close_matches(name.upper(), PRIVILEGES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadRequestError(f"there is no privilege {name[:80]!r}{hint}")
        if kind not in known.on:
            raise BadRequestError(
                f"{name} cannot be granted on {_LABELS[kind]}; it can be granted on "
                + " and ".join(_LABELS[one] for one in known.on)
            )


assert securables.REALM == b"R"
