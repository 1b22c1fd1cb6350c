"""Procedures of the catalogs of a realm: create, list, describe, rename, drop and restore them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import AlreadyExistsError, InputError, NotFoundError
from polaris_spark.jobs.procedure import IF_EXISTS, IF_NOT_EXISTS, Call, Column, Parameter, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.catalogs.realm_catalogs import RealmCatalogs
    from polaris_spark.catalog.rows import CatalogRow, DroppedMark

Rows = Iterable[tuple[Any, ...]]


def _create(catalogs: RealmCatalogs, arguments: Mapping[str, Any]) -> Rows:
    properties = arguments.get("properties", {})
    for name, text in properties.items():
        if text is None:
            raise InputError(f"the property {name!r} is NULL; leave it out")
    if "warehouse" in properties:
        raise InputError("give the warehouse as the argument 'warehouse', not as a property")
    try:
        made = catalogs.create(arguments["name"], {**properties, "warehouse": arguments["warehouse"]})
    except AlreadyExistsError:
        found = catalogs.find(arguments["name"])
        if found is None or not arguments.get("if_not_exists", False):
            raise
        return [(found.row.name, found.row.entity_id, False)]
    return [(made.row.name, made.row.entity_id, True)]


def _show(catalogs: RealmCatalogs, arguments: Mapping[str, Any]) -> Rows:
    found = [_row(one.row) for one in catalogs.all()]
    if arguments.get("dropped", False):
        found += [_row(one.row, one.mark) for one in catalogs.dropped()]
    return found


def _describe(catalogs: RealmCatalogs, arguments: Mapping[str, Any]) -> Rows:
    return [_row(catalogs.described(arguments["name"]).row)]


def _rename(catalogs: RealmCatalogs, arguments: Mapping[str, Any]) -> Rows:
    renamed = catalogs.rename(arguments["name"], arguments["to"])
    return [(renamed.row.name, renamed.row.entity_id)]


def _drop(catalogs: RealmCatalogs, arguments: Mapping[str, Any]) -> Rows:
    name = arguments["name"]
    try:
        row = catalogs.drop(name, cascade=arguments.get("cascade", False))
    except NotFoundError:
        if not arguments.get("if_exists", False):
            raise
        return [(name, None, False)]
    return [(name, row.entity_id, True)]


def _undrop(catalogs: RealmCatalogs, arguments: Mapping[str, Any]) -> Rows:
    restored = catalogs.undrop(arguments["name"], id=arguments.get("id"), to=arguments.get("to"))
    return [(restored.row.name, restored.row.entity_id)]


def _row(row: CatalogRow, dropped: DroppedMark | None = None) -> tuple[Any, ...]:
    from polaris_spark.catalog.entities.properties import WAREHOUSE

    return (
        row.name,
        row.entity_id,
        "active" if dropped is None else "dropped",
        row.properties.get(WAREHOUSE),
        row.owner,
        _time(row.created),
        None if dropped is None else _time(dropped.time),
        None if dropped is None else dropped.principal,
        json.dumps(dict(sorted(row.properties.items())), ensure_ascii=False),
    )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, timezone.utc)


def _procedure(
    name: str,
    comment: str,
    parameters: tuple[Parameter, ...],
    columns: tuple[Column, ...],
    rows: Callable[[RealmCatalogs, Mapping[str, Any]], Rows],
    *,
    why: str,
    only_reads: bool = False,
) -> Procedure:
    def run(call: Call, arguments: Mapping[str, Any]) -> Rows:
        return rows(call.session.catalogs, arguments)

    return Procedure(
        name=name,
        needs=(Need("", On.OWN, why=why),),
        comment=comment,
        parameters=parameters,
        columns=columns,
        run=run,
        on_realm=rows,
        over_http=True,
        only_reads=only_reads,
    )


_CATALOG = columns("catalog STRING, catalog_id BIGINT")
_NAME = Parameter("name", "STRING", "name of the catalog", required=True)

CREATE = _procedure(
    "create_catalog",
    "Create a catalog of the realm.",
    (
        _NAME,
        Parameter(
            "warehouse",
            "STRING",
            "location below which its tables are created",
            required=True,
            is_location=True,
        ),
        Parameter(
            "properties",
            "MAP<STRING,STRING>",
            "properties to store with it, such as map('gc.enabled', 'false')",
            takes_variables=False,
        ),
        IF_NOT_EXISTS,
    ),
    (*_CATALOG, Column("created", "BOOLEAN")),
    _create,
    why="`CATALOG_CREATE` on the realm, and for a catalog with `shared-locations=allow` also `SERVICE_MANAGE_ACCESS` "
    "on the realm; the caller owns the new catalog",
)
SHOW = _procedure(
    "show_catalogs",
    "List the catalogs of the realm.",
    (Parameter("dropped", "BOOLEAN", "whether to list dropped catalogs that can be restored, too"),),
    (
        *_CATALOG,
        *columns(
            "state STRING, warehouse STRING, owner STRING, created_at TIMESTAMP, dropped_at TIMESTAMP, "
            "dropped_by STRING, properties STRING"
        ),
    ),
    _show,
    why="nothing; the result has the catalogs that the caller may see, and the properties only with "
    "`CATALOG_READ_PROPERTIES`",
    only_reads=True,
)
DESCRIBE = _procedure(
    "describe_catalog",
    "Describe a catalog of the realm.",
    (_NAME,),
    SHOW.columns,
    _describe,
    why="`CATALOG_READ_PROPERTIES` on the catalog that the argument names",
    only_reads=True,
)
RENAME = _procedure(
    "rename_catalog",
    "Rename a catalog of the realm. Sessions that have it open go on working on it.",
    (_NAME, Parameter("to", "STRING", "the new name", required=True)),
    _CATALOG,
    _rename,
    why="`CATALOG_WRITE_PROPERTIES` on the catalog that the argument names",
)
DROP = _procedure(
    "drop_catalog",
    "Drop a catalog of the realm. It can be restored until the grace period ends.",
    (
        _NAME,
        Parameter("cascade", "BOOLEAN", "whether to drop it although it contains namespaces"),
        IF_EXISTS,
    ),
    (*_CATALOG, Column("dropped", "BOOLEAN")),
    _drop,
    why="`CATALOG_DROP` on the catalog that the argument names",
)
UNDROP = _procedure(
    "undrop_catalog",
    "Restore a dropped catalog of the realm, with its branches and tags.",
    (
        _NAME,
        Parameter("id", "BIGINT", "id of the catalog; by default, that of the catalog that was dropped last"),
        Parameter("to", "STRING", "another name for it"),
    ),
    _CATALOG,
    _undrop,
    why="`CATALOG_DROP` on the catalog that the argument names",
)
