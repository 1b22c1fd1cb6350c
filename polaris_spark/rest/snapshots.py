"""The snapshots that an answer with `snapshots=refs` left out, on demand: an extension of the REST protocol.

Such an answer carries the header `Polaris-Snapshots: TABLE-VERSION-SET-UUID` unless branches and tags name every
snapshot: in hexadecimal digits the table's stable id, the version that was answered, and a fingerprint of its snapshots
that stays the same while they do; then the table's UUID, or a digest where that is some other text. The rest is asked
for by table and version, so that nothing that others do meanwhile changes it, be it commits, renaming or dropping the
table:

    GET /v1/{prefix}/tables/{TABLE}/versions/{VERSION}/snapshots?uuid={UUID}&since={another version}

Of a table that is not in the catalog (any more), versions are shown to those only who know its UUID, which nobody can
guess: they have been shown the table.

The answer is `{"since": "...", "removed": [ids], "snapshots": [...]}`: what leads from the snapshots of the version
`since` to those asked for, removed ones first, the others added at the end. Without `since`, or if that version is
not there or does not help, `since` is missing in the answer, and `snapshots` holds all of them.
"""

from __future__ import annotations

import hashlib
import string

from polaris_spark.catalog.catalog import Catalog
from polaris_spark.catalog.contents import Stored
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.metadata.snapshot_sets import (
    all_named,
    all_snapshots,
    changes_between,
    fingerprint,
)
from polaris_spark.catalog.rows import IDS, id_bytes
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, CorruptionError, NoSuchTableError, NotFoundError
from polaris_spark.rest.request import Request, Response, json_response
from polaris_spark.rest.router import Route

HEADER = "Polaris-Snapshots"

_MOST_DIGITS = 16
_MOST_OF_UUID = 64
_UUID = frozenset(string.ascii_letters + string.digits + "-")


def pin(stored: Stored[Table]) -> dict[str, str]:
    """The header that says how to ask for the snapshots of a version; none where there are no others."""
    table = stored.value
    if all_named(table):
        return {}
    return {HEADER: f"{table.entity_id:x}-{stored.content:x}-{fingerprint(table)}-{_uuid(table)}"}


def load_snapshots(catalog: Catalog, request: Request) -> Response:
    """GET tables/{table}/versions/{version}/snapshots"""
    table_id, version = _number(request.params["table"]), _number(request.params["version"])
    since, uuid = request.query.get("since"), request.query.get("uuid")
    view = catalog.view()
    lives = view.lookup(IDS, id_bytes(table_id)) is not None
    table = _version(view, table_id, version)
    if not lives and (table is None or not uuid or uuid != _uuid(table)):
        raise NoSuchTableError("Table does not exist: it was dropped")
    if table is None:
        raise NotFoundError(
            f"version {version:x} of this table is not there, or no longer: load the table again"
        )
    known = _version(view, table_id, _number(since)) if since else None
    changes = changes_between(known, table, view) if known else None
    head = f'"since":"{since}",' if changes else ""
    removed, added = changes or all_snapshots(table, view)
    texts = b",".join(added).decode()
    return json_response(f'{{{head}"removed":[{",".join(map(str, removed))}],"snapshots":[{texts}]}}')


def _uuid(table: Table) -> str:
    """A table's UUID as it may stand in a header: clients can set it to any text."""
    if len(table.uuid) <= _MOST_OF_UUID and _UUID.issuperset(table.uuid):
        return table.uuid
    return hashlib.blake2b(table.uuid.encode(), digest_size=16).hexdigest()


def _version(view: State, table_id: int, version: int) -> Table | None:
    """A version of a table; None if it is not there. Entity ids are never reused, so one that matches proves that the
    version belongs to the table, whatever number was asked for."""
    try:
        table = view.get(version, Table)
    except CorruptionError:  # no such row, or a row of something else
        return None
    return table if table.entity_id == table_id else None


def _number(text: str) -> int:
    """An id written in hexadecimal digits.

    Raises:
        BadRequestError: it is none.
    """
    digits = set(text) <= set("0123456789abcdef")
    if not text or len(text) > _MOST_DIGITS or not digits or int(text, 16) >= 1 << 63:
        raise BadRequestError(f"{text[:80]!r} is not the number of a table or version, as hexadecimal digits")
    return int(text, 16)


ROUTES = [Route("GET", "tables/{table}/versions/{version}/snapshots", load_snapshots)]
