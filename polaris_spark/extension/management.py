"""Routes of catalogs that are compatible with the management API of Apache Polaris
(https://github.com/apache/polaris/blob/main/spec/polaris-management-service.yml).

| Polaris | here |
| --- | --- |
| property `default-base-location` | property `warehouse`, which is fixed when the catalog is created |
| `storageConfigInfo.allowedLocations` | property `allowed-locations` |
| `storageConfigInfo.storageType` | follows from the warehouse; other settings of the storage are refused |
| `entityVersion` | a number that is different after each change of the catalog |
| other properties | the properties that `set_catalog_properties` accepts |
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.catalogs import StoredCatalog
from polaris_spark.catalog.catalogs.realm_catalogs import RealmCatalogs
from polaris_spark.catalog.entities.properties import ALLOWED_LOCATIONS, SHARED_LOCATIONS, WAREHOUSE
from polaris_spark.catalog.files.files import absolute
from polaris_spark.catalog.files.locations import folder, segments
from polaris_spark.errors import BadRequestError, CommitFailedError
from polaris_spark.ids import id_time_ms
from polaris_spark.jobs import catalogs as procedures
from polaris_spark.rest.access import Role
from polaris_spark.rest.messages import decode, encode
from polaris_spark.rest.request import NO_CONTENT, Request, Response, json_response
from polaris_spark.rest.router import MANAGEMENT, Route
from polaris_spark.rest.session import Session

_BASE_LOCATION = "default-base-location"
_STORAGE = {"file": "FILE", "s3": "S3", "gs": "GCS", "abfs": "AZURE"}
"""Types of storage in the API, by scheme."""


class ManagementMessage(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """Base class of bodies of the management API, whose field names are in camel case."""


class StorageConfigInfo(ManagementMessage, frozen=True, forbid_unknown_fields=True, gc=False):
    """The storage of a catalog."""

    storage_type: str
    allowed_locations: list[str] | None = None
    """Locations below which tables and views may lie, besides the warehouse."""


class ManagedCatalog(ManagementMessage, frozen=True, omit_defaults=False, gc=False):
    """A catalog."""

    name: str
    properties: dict[str, str]
    type: Literal["INTERNAL", "EXTERNAL"] = "INTERNAL"
    storage_config_info: StorageConfigInfo | None = None
    create_timestamp: int | None = None
    last_update_timestamp: int | None = None
    entity_version: int | None = None


class ManagedCatalogs(ManagementMessage, frozen=True, gc=False):
    """All catalogs of a realm."""

    catalogs: list[ManagedCatalog]


class CreateManagedCatalogRequest(ManagementMessage, frozen=True, gc=False):
    """A request to create a catalog."""

    catalog: ManagedCatalog


class UpdateManagedCatalogRequest(ManagementMessage, frozen=True, gc=False):
    """A request to change the properties of a catalog."""

    current_entity_version: int
    properties: dict[str, str] | None = None
    """All properties that the catalog has afterwards; None to keep them."""
    storage_config_info: StorageConfigInfo | None = None


def list_managed_catalogs(_: Catalog, request: Request) -> Response:
    """Answer `GET catalogs`: describe all catalogs."""
    return json_response(encode(ManagedCatalogs([_described(one) for one in _catalogs(request).all()])))


def create_managed_catalog(catalog: Catalog, request: Request) -> Response:
    """Answer `POST catalogs`: create a catalog."""
    asked = decode(request.body, CreateManagedCatalogRequest).catalog
    if asked.type != "INTERNAL":
        raise BadRequestError(f"a catalog of type {asked.type} cannot be created; the type must be INTERNAL")
    warehouse = asked.properties.get(_BASE_LOCATION)
    if not warehouse:
        raise BadRequestError(
            f"the property {_BASE_LOCATION!r} is missing: the location below which tables are created"
        )
    catalog.context.require_allowed([segments(folder(warehouse))])
    given = _given(asked.properties, asked.storage_config_info, warehouse)
    made = _catalogs(request).create(asked.name, {**given, WAREHOUSE: warehouse})
    return json_response(encode(_described(made)), 201)


def get_managed_catalog(_: Catalog, request: Request) -> Response:
    """Answer `GET catalogs/{catalog}`: describe a catalog."""
    return json_response(encode(_described(_catalogs(request).described(request.params["catalog"]))))


def update_managed_catalog(_: Catalog, request: Request) -> Response:
    """Answer `PUT catalogs/{catalog}`: replace the properties of a catalog."""
    asked, catalogs = decode(request.body, UpdateManagedCatalogRequest), _catalogs(request)
    found = catalogs.described(request.params["catalog"])
    if _version(found) != asked.current_entity_version:
        raise CommitFailedError(
            f"catalog {found.row.name!r} has the version {_version(found)}, not {asked.current_entity_version}; read "
            "it again"
        )
    before = found.row.properties
    warehouse = before.get(WAREHOUSE, "")
    kept = {name: text for name, text in before.items() if name not in (WAREHOUSE, SHARED_LOCATIONS)}
    if asked.properties is not None:
        there = asked.properties.get(_BASE_LOCATION, warehouse)
        if absolute(there) != warehouse:
            raise BadRequestError(
                f"the property {_BASE_LOCATION!r} is fixed when the catalog is created; it is {warehouse!r}"
            )
        shared = before.get(SHARED_LOCATIONS)
        if shared is not None and asked.properties.get(SHARED_LOCATIONS, shared) == shared:
            asked.properties.pop(SHARED_LOCATIONS, None)
        allowed = {name: text for name, text in kept.items() if name == ALLOWED_LOCATIONS}
        kept = {**allowed, **_given(asked.properties, None, warehouse)}
    after = {**kept, **_given({}, asked.storage_config_info, warehouse)}
    removed = [name for name in before if name not in (*after, WAREHOUSE, SHARED_LOCATIONS)]
    changed = catalogs.set_properties(found.row.name, after, removed, expected=found.pointer)
    return json_response(encode(_described(changed)))


def drop_managed_catalog(_: Catalog, request: Request) -> Response:
    """Answer `DELETE catalogs/{catalog}`: drop a catalog that contains no namespace."""
    _catalogs(request).drop(request.params["catalog"])
    return NO_CONTENT


def session_of(request: Request) -> Session:
    """Return a session of the caller, whose changes have the notes of the request."""
    session, caller = request.session, request.caller
    assert isinstance(session, Session)  # every transport with these routes passes a session
    if caller.is_local:
        return session.derive(notes=request.notes)
    found = session.derive(
        caller.principal, notes=request.notes, roles=caller.roles, is_verified=caller.is_verified
    )
    found.secret = caller.secret
    return found


def _catalogs(request: Request) -> RealmCatalogs:
    return session_of(request).catalogs


def _given(properties: dict[str, str], storage: StorageConfigInfo | None, warehouse: str) -> dict[str, str]:
    """Return the properties of a catalog that a request gives, without its warehouse."""
    found = {name: text for name, text in properties.items() if name != _BASE_LOCATION}
    if WAREHOUSE in found:
        raise BadRequestError(f"give the warehouse as the property {_BASE_LOCATION!r}")
    if storage is None:
        return found
    kind = _storage_type(warehouse)
    if storage.storage_type != kind:
        raise BadRequestError(
            f"storageType is {storage.storage_type!r}, but the warehouse {warehouse!r} is in storage of type {kind}"
        )
    if storage.allowed_locations is not None:
        found[ALLOWED_LOCATIONS] = ",".join(storage.allowed_locations)
    return found


def _described(found: StoredCatalog) -> ManagedCatalog:
    row = found.row
    fixed = (WAREHOUSE, ALLOWED_LOCATIONS)
    properties = {name: text for name, text in row.properties.items() if name not in fixed}
    warehouse, allowed = row.properties.get(WAREHOUSE, ""), row.properties.get(ALLOWED_LOCATIONS)
    return ManagedCatalog(
        name=row.name,
        properties={**properties, _BASE_LOCATION: warehouse},
        type="INTERNAL",
        storage_config_info=StorageConfigInfo(
            _storage_type(warehouse), None if allowed is None else [one.strip() for one in allowed.split(",")]
        ),
        create_timestamp=row.created,
        last_update_timestamp=id_time_ms(found.pointer),
        entity_version=_version(found),
    )


def _version(found: StoredCatalog) -> int:
    return version_of(found.pointer)


def version_of(pointer: int) -> int:
    """Return a number of 31 bits that is different after each change of an entity, because clients use 32 bits.

    Args:
        pointer: object id of the present row of the entity.
    """
    digest = hashlib.sha256(pointer.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _storage_type(location: str) -> str:
    scheme = segments(location)[0].partition(":")[0] if location else "file"
    return _STORAGE.get(scheme, scheme.upper())


ROUTES = (
    Route(
        "GET",
        "catalogs",
        list_managed_catalogs,
        MANAGEMENT,
        Role.ADMINISTRATOR,
        result=ManagedCatalogs,
        needs=procedures.SHOW.needs,
    ),
    Route(
        "POST",
        "catalogs",
        create_managed_catalog,
        MANAGEMENT,
        Role.ADMINISTRATOR,
        body=CreateManagedCatalogRequest,
        result=ManagedCatalog,
        needs=procedures.CREATE.needs,
    ),
    Route(
        "GET",
        "catalogs/{catalog}",
        get_managed_catalog,
        MANAGEMENT,
        Role.ADMINISTRATOR,
        result=ManagedCatalog,
        needs=procedures.DESCRIBE.needs,
    ),
    Route(
        "PUT",
        "catalogs/{catalog}",
        update_managed_catalog,
        MANAGEMENT,
        Role.ADMINISTRATOR,
        body=UpdateManagedCatalogRequest,
        result=ManagedCatalog,
        needs=procedures.RENAME.needs,
    ),
    Route(
        "DELETE",
        "catalogs/{catalog}",
        drop_managed_catalog,
        MANAGEMENT,
        Role.ADMINISTRATOR,
        needs=procedures.DROP.needs,
    ),
)
