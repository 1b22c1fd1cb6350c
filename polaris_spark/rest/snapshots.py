"""An extension of the REST protocol: load the snapshots that a response with `snapshots=refs` left out.

A response with `snapshots=refs` has the header `Polaris-Snapshots: TABLE-VERSION-SET-UUID`, unless the table's row
shows that branches and tags refer to every snapshot. TABLE is the table's stable id, VERSION is the table version in
the response, and SET is a fingerprint of this version's snapshots, which is equal for versions with the same snapshots;
all three are hexadecimal. UUID is the table's UUID, or a digest if the UUID is set to a text that is not valid in a
header. A client requests the other snapshots by table and version. So the result does not change if the table is
committed to, renamed or dropped:

    GET /v1/{prefix}/tables/{TABLE}/versions/{VERSION}/snapshots?uuid={UUID}&since={another version}

If the table is not in the catalog, for example because it was dropped, the request must contain its UUID. The UUID
cannot be guessed, so a client that sends it has loaded the table before.

The response is `{"since": "...", "removed": [ids], "snapshots": [...]}`. To get the snapshots of the requested version,
take the snapshots of the version `since`, remove `removed`, then append `snapshots`. If the request has no `since`, or
if the version `since` does not exist or does not lead to the requested version in this way, the response has no
`since`, and `snapshots` contains all snapshots.
"""

from __future__ import annotations

import hashlib
import string

from polaris_spark.access.needs import Need, On
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.metadata.snapshot_sets import (
    all_named,
    all_snapshots,
    changes_between,
    fingerprint,
)
from polaris_spark.catalog.rows import IDS, id_bytes
from polaris_spark.catalog.tables.contents import StoredContent
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, CorruptionError, NoSuchTableError, NotFoundError
from polaris_spark.rest.request import Request, Response, json_response
from polaris_spark.rest.router import Route

HEADER = "Polaris-Snapshots"

_MOST_DIGITS = 16
_MOST_OF_UUID = 64
_UUID = frozenset(string.ascii_letters + string.digits + "-")


def pin(stored: StoredContent[Table]) -> dict[str, str]:
    """Return the header that a client needs to request the snapshots that a response left out. Return an empty
    dictionary if the table's row shows that the response left out none."""
    table = stored.value
    if all_named(table):
        return {}
    return {HEADER: f"{table.entity_id:x}-{stored.content:x}-{fingerprint(table)}-{_uuid(table)}"}


def load_snapshots(catalog: Catalog, request: Request) -> Response:
    """Answer `GET tables/{table}/versions/{version}/snapshots`: return the snapshots of a table version, or its
    differences from another version."""
    table_id, version = _number(request.params["table"]), _number(request.params["version"])
    since, uuid = request.query.get("since"), request.query.get("uuid")
    view = catalog.view()
    lives = view.lookup(IDS, id_bytes(table_id)) is not None
    table = _version(view, table_id, version)
    if not lives and (table is None or not uuid or uuid != _uuid(table)):
        raise NoSuchTableError(
            f"Table does not exist: the table with the id {table_id:x} was dropped or never existed"
        )
    if table is None:
        raise NotFoundError(
            f"version {version:x} of this table never existed or was deleted: load the table again"
        )
    known = _version(view, table_id, _number(since)) if since else None
    changes = changes_between(known, table, view) if known else None
    head = f'"since":"{since}",' if changes else ""
    removed, added = changes or all_snapshots(table, view)
    texts = b",".join(added).decode()
    return json_response(f'{{{head}"removed":[{",".join(map(str, removed))}],"snapshots":[{texts}]}}')


def _uuid(table: Table) -> str:
    """Return a table's UUID in a form that is valid in a header, because clients can set the UUID to any text."""
    if len(table.uuid) <= _MOST_OF_UUID and _UUID.issuperset(table.uuid):
        return table.uuid
    return hashlib.blake2b(table.uuid.encode(), digest_size=16).hexdigest()


def _version(view: State, table_id: int, version: int) -> Table | None:
    """Return a version of the table with the entity id `table_id`. Return None if there is no such version.

    Clients can send the id of any object as `version`. Entity ids are never reused, so if the object has the entity id
    `table_id`, it is a version of this table.
    """
    try:
        table = view.get(version, Table)
    except CorruptionError:  # no such row, or a row of something else
        return None
    return table if table.entity_id == table_id else None


def _number(text: str) -> int:
    """Return the id that a text of hexadecimal digits encodes.

    Raises:
        BadRequestError: the text is not an id in hexadecimal digits.
    """
    digits = set(text) <= set("0123456789abcdef")
    if not text or len(text) > _MOST_DIGITS or not digits or int(text, 16) >= 1 << 63:
        raise BadRequestError(
            f"{text[:80]!r} is not the id of a table or version in hexadecimal digits; take it from the header "
            f"{HEADER}"
        )
    return int(text, 16)


ROUTES = [
    Route(
        "GET",
        "tables/{table}/versions/{version}/snapshots",
        load_snapshots,
        needs=(Need("TABLE_READ_PROPERTIES", On.TABLE_ID),),
    )
]
