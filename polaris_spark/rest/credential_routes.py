"""Routes that give clients access to the files of tables, and the fields about this access in responses that contain a
table.

A client asks for access by the header `X-Iceberg-Access-Delegation`. The answers of a server with settings for the
table's storage (`storage.settings`) then contain temporary credentials, or say that the server signs requests. Both are
limited to the locations that the table owns, and to reads if the caller may only read.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import quote

import msgspec

from polaris_spark.access.control import AccessControl
from polaris_spark.access.needs import Need, On, When
from polaris_spark.catalog.branches.states import STATE, name_of_state
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.entities.entities import TableName, namespace_in, require
from polaris_spark.catalog.entities.properties import SHARED_LOCATIONS
from polaris_spark.catalog.files.locations import Holdings, overlapping, owner_of, segments
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.rows import TABLE
from polaris_spark.catalog.tables.contents import require_available
from polaris_spark.commits.state import State, reading_state
from polaris_spark.errors import (
    ForbiddenError,
    NoSuchTableError,
    PolarisError,
    ReferenceGoneError,
    UnsupportedOperationError,
)
from polaris_spark.names import MAIN
from polaris_spark.rest import messages
from polaris_spark.rest.permissions import Named, Permissions, forbidden
from polaris_spark.rest.request import Request, Response
from polaris_spark.rest.router import Route
from polaris_spark.storage.access import StorageAccess
from polaris_spark.storage.prefixes import Prefix, common_beginning, prefixes_of
from polaris_spark.storage.settings import Storage
from polaris_spark.storage.signing import SignRequest, reads_only
from polaris_spark.storage.vending import Rights

log = logging.getLogger("polaris_spark")

HEADER: Final = "x-iceberg-access-delegation"
VENDED: Final = "vended-credentials"
SIGNED: Final = "remote-signing"
LOCATION: Final = "location"
"""Parameter and property of a request to sign: location of a table whose creation is staged."""
NO_STORE: Final = {"Cache-Control": "no-store"}


class Serving(Protocol):
    """The part of `rest.session.Session` that this module uses."""

    access: AccessControl
    catalog: Catalog
    storage: StorageAccess | None
    """Access to the storage of tables that clients get; None if they get none."""


class Place(NamedTuple):
    """The storage of a table, as one caller may use it."""

    storage: Storage
    role: str | None
    """The role to assume; None if no temporary credentials are handed out."""
    prefixes: tuple[Prefix, ...]
    rights: Rights


class Loaded(NamedTuple):
    """A table, or a table whose creation is staged, and the state of the catalog to which it belongs."""

    view: State
    name: TableName
    location: str
    properties: Mapping[str, str] = {}
    unconfirmed: Sequence[str] = ()
    entity_id: int = 0
    """Entity id of the table; 0 if its creation is staged."""

    @classmethod
    def of(cls, view: State, name: TableName, table: Table) -> Loaded:
        """Return a table that exists."""
        return cls(view, name, table.location, table.properties, table.unconfirmed, table.entity_id)


class Delegation(NamedTuple):
    """The fields about access to a table's files in the response that contains the table."""

    config: dict[str, str]
    credentials: Sequence[Mapping[str, Any]] = ()
    signing: Mapping[str, str] = {}
    """Properties that the client must send with each request to sign."""

    def fields(self) -> bytes:
        """Return the fields of the answer, as JSON without braces."""
        found = b'"config":' + msgspec.json.encode(self.config)
        if self.credentials:
            found += b',"storage-credentials":' + msgspec.json.encode(list(self.credentials))
        if self.signing:
            found += b',"remote-signing-config":' + msgspec.json.encode({"properties": self.signing})
        return found


def storage_of(request: Request) -> StorageAccess | None:
    """Return the access to storage that the server of a request hands out; None if it hands out none."""
    return None if request.session is None else cast("Serving", request.session).storage


def wanted(request: Request) -> list[str]:
    """Return the kinds of access that the caller asks for and that this server may hand out, in the caller's order."""
    if storage_of(request) is None:
        return []
    named = [one.strip().lower() for one in request.headers.get(HEADER, "").split(",")]
    return [one for one in dict.fromkeys(named) if one in (VENDED, SIGNED)]


def delegation(catalog: Catalog, request: Request, loaded: Loaded) -> Delegation | None:
    """Return the fields about access to a table's files for the response that contains the table. Return None if the
    caller does not ask for access, or gets none.

    Raises:
        TryAgainError, ForbiddenError: temporary credentials cannot be obtained.
    """
    kinds = wanted(request)
    if not kinds:
        return None
    try:
        place = _place(catalog, request, loaded)
    except (ForbiddenError, UnsupportedOperationError):
        return None  # the client may read the metadata; it gets the reason from the route of credentials
    path = _path_of(catalog, request, loaded)
    for kind in kinds:
        if kind == VENDED and place.role is not None:
            return _vended(request, place, path)
        if kind == SIGNED and place.storage.remote_signing:
            return _signer(place.storage, path, loaded)
    return None


def delegation_of_created(
    catalog: Catalog, request: Request, name: TableName, table: Table
) -> Delegation | None:
    """Return `delegation` for a table that was just created. An error is only logged, because the table exists: the
    client gets its credentials when it loads the table."""
    if not wanted(request):
        return None
    try:
        return delegation(catalog, request, Loaded.of(catalog.view(), name, table))
    except PolarisError as error:
        log.warning("table %s was created, but its client gets no credentials: %s", name, error)
        return None


def delegation_of_staged(
    catalog: Catalog, request: Request, name: TableName, table: Table
) -> Delegation | None:
    """Return `delegation` for a table whose creation is staged: the client writes files before the table exists."""
    if not wanted(request):
        return None
    staged = Loaded(catalog.view(), name, table.location, table.properties)
    return delegation(catalog, request, staged)


def _path_of(catalog: Catalog, request: Request, loaded: Loaded) -> str:
    """Return the URL path of a table, with the prefix and the escaping that the client used in its request.

    Args:
        request: a request that loads the table, or a request that creates or registers it in the namespace in the
            request's path.
    """
    path = request.path.strip("/")
    if "table" in request.params:
        return path
    above = path.rpartition("/")[0]
    here = cast("Serving", request.session).catalog
    state = "" if catalog.branch == here.branch else f"{STATE}{name_of_state(catalog)}"
    return f"{above}/tables/{quote(f'{loaded.name.name}{state}', safe='')}"


def _place(catalog: Catalog, request: Request, loaded: Loaded) -> Place:
    """Return the storage of a table.

    Raises:
        ForbiddenError: the caller may neither read nor write the table's data, another table owns an overlapping
            location, or the catalog allows shared locations, so that another table may own one.
        UnsupportedOperationError: this server hands out no access to the table; the message says why.
    """
    session = cast("Serving", request.session)
    assert session.storage is not None
    rights = _rights(session, catalog, request, loaded)
    prefixes = prefixes_of(loaded.location, loaded.properties, loaded.unconfirmed)
    if catalog.context.shared_locations and session.access.is_on:
        raise ForbiddenError(
            f"no credentials are handed out for tables of catalog {catalog.name}, because it has "
            f"{SHARED_LOCATIONS}=allow: other catalogs may have tables at the same locations"
        )
    _require_sole_owner(catalog, loaded, prefixes)
    effective = catalog.context.binding.of(catalog.newest(loaded.view.base))
    storage, role = session.storage.place_of(prefixes, effective.storage_role)
    return Place(storage, role, prefixes, rights)


def _require_sole_owner(catalog: Catalog, loaded: Loaded, prefixes: Sequence[Prefix]) -> None:
    """Check that no other table owns the locations of a table: neither in the state of the request, nor in the newest
    state of its branch or of the branch main. Otherwise, a table in the past or on a branch would give access to the
    files of another table that has taken over its location since then.

    An older table that only uses a location, such as an imported one, counts as well. A newer one does not: its
    metadata file can name any location.

    Raises:
        ForbiddenError: another table owns or uses an overlapping location.
    """
    heads = [catalog.newest(loaded.view.base)]
    if catalog.branch != MAIN:
        with contextlib.suppress(ReferenceGoneError):
            heads.append(catalog.references.read(head_name(catalog.row, MAIN)))
    states = [loaded.view, *(reading_state(one) for one in heads if one is not loaded.view.base)]
    for prefix in prefixes:
        place = segments(prefix.location)
        if any(_is_taken(state, place, loaded.entity_id) for state in states):
            raise ForbiddenError(
                f"no credentials are handed out for {prefix.location}, because it overlaps the location of another "
                "table or view"
            )


def _is_taken(state: State, place: tuple[str, ...], entity_id: int) -> bool:
    """Whether another table or view owns a location that overlaps `place`, or an older table or view uses such a
    location.

    Args:
        entity_id: entity id of the table; 0 if its creation is staged.
    """
    if owner_of(state, place, but=entity_id) is not None:
        return True
    return any(not entity_id or id < entity_id for id in overlapping(state, place) - {entity_id})


def _rights(session: Serving, catalog: Catalog, request: Request, loaded: Loaded) -> Rights:
    """Return what a caller may do with the data of a table.

    Raises:
        ForbiddenError: the caller may do nothing with the data.
        NotAuthorizedError: the principal has been revoked or has expired since the request was checked.
        NotFoundError: the caller may do nothing with the data, the creation of the table is staged, and the caller may
            not see the namespace.
    """
    most: Rights = "read" if catalog.is_fixed else "write"
    rules = session.access.rules()
    if rules is None:
        return most
    now = catalog.context.clock.now_ms()
    subject = rules.subject(request.principal, now, request.caller.roles)
    head, name = loaded.view.base, loaded.name
    permissions = Permissions(rules, subject, catalog, head, catalog.newest(head))
    if not loaded.entity_id:  # the caller becomes the owner of the table
        permissions.require("TABLE_CREATE", Named(name.namespace))
        return most
    place = permissions.place(Named(name.namespace, name.name, TABLE))
    if most == "write" and permissions.may("TABLE_WRITE_DATA", place):
        return "write"
    if permissions.may("TABLE_READ_DATA", place):
        return "read"
    raise forbidden(subject, "TABLE_READ_DATA", f"table {name}")


def _described(storage: Storage) -> dict[str, str]:
    """Return the properties with which clients connect to a storage."""
    found = {"client.region": storage.region}
    if storage.endpoint is not None:
        found["s3.endpoint"] = storage.endpoint
        found["s3.path-style-access"] = "true" if storage.path_style_access else "false"
    return found


def _vended(request: Request, place: Place, path: str) -> Delegation:
    session = cast("Serving", request.session)
    assert session.storage is not None
    assert place.role is not None
    made = session.storage.vendor.credentials(
        place.storage, place.role, place.prefixes, place.rights, request.principal
    )
    config = {
        **_described(place.storage),
        "s3.access-key-id": made.access_key,
        "s3.secret-access-key": made.secret_key,
        "s3.session-token": made.token,
        "s3.session-token-expires-at-ms": str(made.expires_at),
        "client.refresh-credentials-endpoint": f"{path}/credentials",
    }
    return Delegation(config, [{"prefix": common_beginning(place.prefixes), "config": config}])


def _signer(storage: Storage, path: str, loaded: Loaded) -> Delegation:
    """Return the properties that tell clients the route that signs requests, for Iceberg's Java client and for
    pyiceberg. If the creation of the table is staged, the requests to the route must also contain the table's location:
    newer clients send it as a property, and others as a part of the URL that they were given."""
    query = "" if loaded.entity_id else f"?{LOCATION}={quote(loaded.location, safe='')}"
    config = {
        **_described(storage),
        "s3.remote-signing-enabled": "true",
        "s3.signer.endpoint": f"{path}/sign{query}",
        "s3.signer": "S3V4RestSigner",
    }
    return Delegation(config, signing={} if loaded.entity_id else {LOCATION: loaded.location})


def _table(catalog: Catalog, request: Request) -> Loaded:
    name = TableName(namespace_in(request.params["namespace"]), request.params["table"])

    def load() -> Loaded:
        view = catalog.view()
        return Loaded.of(view, name, view.get(require(view, name, TABLE).content, Table))

    return catalog.loading(load, request.principal)


def _staged(catalog: Catalog, request: Request, location: str) -> Loaded:
    """Return a table whose creation is staged. Nothing about the table is stored, so the location is checked as if the
    table were created there now.

    Raises:
        ForbiddenError: the caller may not create a table there.
    """
    catalog.require_present()
    name = TableName(namespace_in(request.params["namespace"]), request.params["table"])
    head = catalog.head()
    view = catalog.view(head)
    held = Holdings(frozenset((segments(location),)))
    catalog.context.require_allowed(held.owned)
    require_available(catalog.context, view, 0, Holdings(), held)
    return Loaded(view, name, location)


def _require_storage(request: Request) -> None:
    if storage_of(request) is None:
        raise UnsupportedOperationError(
            "this server hands out no access to the storage of tables; clients must use their own credentials"
        )


def load_credentials(catalog: Catalog, request: Request) -> Response:
    """Answer `GET namespaces/{namespace}/tables/{table}/credentials`: return temporary credentials for a table."""
    _require_storage(request)
    place = _place(catalog, request, _table(catalog, request))
    if place.role is None:
        raise UnsupportedOperationError(
            "this server hands out no temporary credentials for this table, because the settings of its storage have "
            "no role-arn"
        )
    path = request.path.strip("/").removesuffix("/credentials")
    found = _vended(request, place, path)
    body = messages.encode({"storage-credentials": list(found.credentials)})
    return Response(200, {"Content-Type": "application/json", **NO_STORE}, body)


def sign(catalog: Catalog, request: Request) -> Response:
    """Answer `POST namespaces/{namespace}/tables/{table}/sign`: sign a request to S3 for a table."""
    _require_storage(request)
    asked = messages.decode(request.body, messages.RemoteSignRequest)
    if asked.provider not in (None, "s3"):
        raise UnsupportedOperationError(
            f"this server signs only requests to S3, not to {asked.provider[:40]!r}"
        )
    try:
        loaded = _table(catalog, request)
    except NoSuchTableError:
        location = request.query.get(LOCATION) or (asked.properties or {}).get(LOCATION)
        if not location:
            raise
        loaded = _staged(catalog, request, location)
    place = _place(catalog, request, loaded)
    storage = storage_of(request)
    assert storage is not None
    if not place.storage.remote_signing:
        raise UnsupportedOperationError(
            "this server signs no requests for this table, because the settings of its storage do not set "
            "remote-signing"
        )
    one = SignRequest(asked.method, asked.uri, asked.region, asked.headers, asked.body)
    headers = storage.signed(one, place.storage, place.role, place.prefixes, place.rights, request.principal)
    # A client may use the signature of a read again. One that covers headers of the request fits only this request.
    plain = reads_only(one.method) and not any(name.lower().startswith("x-amz-") for name in one.headers)
    kept = {"Cache-Control": "private" if plain else "no-cache"}
    body = messages.encode({"uri": one.uri, "headers": {name: [text] for name, text in headers.items()}})
    return Response(200, {"Content-Type": "application/json", **kept}, body)


_READS = When("if the request to sign only reads", lambda asked: reads_only(asked.body.method))
_WRITES = When("if the request to sign writes", lambda asked: not reads_only(asked.body.method))

_TABLE = "namespaces/{namespace}/tables/{table}"
ROUTES = [
    Route("GET", f"{_TABLE}/credentials", load_credentials, needs=(Need("TABLE_READ_DATA", On.TABLE),)),
    Route(
        "POST",
        f"{_TABLE}/sign",
        sign,
        body=messages.RemoteSignRequest,
        query=(LOCATION,),
        needs=(
            Need("TABLE_READ_DATA", On.TABLE_OR_NEW, _READS),
            Need("TABLE_WRITE_DATA", On.TABLE_OR_NEW, _WRITES),
        ),
    ),
]
