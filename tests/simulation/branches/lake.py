"""Tables and files of the simulated catalog, as they are stored.

Every write adds a *token* to a table: a property with a new name, or a snapshot with a new data file. Tokens are never
removed from a table, and those of different writes do not conflict.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, MutableMapping
from typing import Any, NamedTuple

import fastavro

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.rows import Table
from polaris_spark.catalog.rows import NAMES, TABLE
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError
from polaris_spark.index.keys import decode_key
from tests.rest.appends import read_list

TOKEN = "token."
"""Beginning of the names of properties that are tokens."""

TABLES = ("t0", "t1")
"""Tables that get properties and snapshots."""
EXPIRING = ("e0",)
"""Tables whose snapshots expire, besides."""
DROPPABLE = ("d0", "d1")
"""Tables that are dropped, restored and created again, besides."""
ALL = (*TABLES, *EXPIRING, *DROPPABLE)


class Storage:
    """The files of the simulated warehouse, for clients and for the product."""

    def __init__(self, files: MutableMapping[str, bytes]) -> None:
        self.files = files

    def confined(self, _: object) -> Storage:
        return self

    def read(self, location: str, *, limit: int = 0) -> bytes:
        """Return the content of a file.

        Raises:
            BadRequestError: there is no such file.
        """
        try:
            return self.files[location]
        except KeyError as error:
            raise BadRequestError(f"cannot read {location!r}: it does not exist") from error

    def write(self, location: str, content: bytes) -> None:
        self.files[location] = content


class Content(NamedTuple):
    """One version of a table."""

    name: str
    tokens: frozenset[str]
    doubled: frozenset[str]
    """Data files that the newest snapshot has more than once."""
    files: frozenset[str]
    """Manifest lists and manifests of all snapshots."""
    wrong: str = ""
    """What contradicts itself in the newest snapshot."""


class Contents:
    """Reads versions of tables. Each version is read only once, because it never changes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known: dict[int, tuple[str, Content]] = {}
        self._lists: dict[str, list[str]] = {}
        self._data: dict[str, tuple[str, ...]] = {}

    def tables(self, state: State) -> dict[str, Content]:
        """Return the tables of a state, by their UUIDs."""
        found = {}
        for key, entry in state.scan(NAMES, b"", None):
            decoded = decode_key(key)
            if decoded.kind == TABLE:
                uuid, content = self.version(state, entry.pointer)
                found[uuid] = content._replace(name=decoded.name)
        return found

    def version(self, state: State, id: int) -> tuple[str, Content]:
        """Return the UUID of a table, and a version of it, without its name.

        Args:
            id: object id of the version.
        """
        if id not in self._known:
            self._known[id] = self._read(state, id)
        return self._known[id]

    def _read(self, state: State, id: int) -> tuple[str, Content]:
        draft = TableDraft(state.get(id, Table), state, now_ms=0)
        rows: Counter[str] = Counter()
        wrong = ""
        current = draft.refs.get("main")
        if current is not None:
            snapshot = draft.snapshots.get(current.snapshot_id) or {}
            for manifest in self._manifests(snapshot["manifest-list"]):
                rows.update(self._data_files(manifest))
            total = snapshot["summary"].get("total-records")
            wrong = f"total-records is {total} of {rows.total()}" if total != str(rows.total()) else ""
        lists = [one["manifest-list"] for one in draft.snapshots.values()]
        manifests = (
            manifest for one in lists if one in self._storage.files for manifest in self._manifests(one)
        )
        return draft.uuid, Content(
            "",
            frozenset(name for name in draft.properties if name.startswith(TOKEN)) | frozenset(rows),
            frozenset(name for name, times in rows.items() if times > 1),
            frozenset((*lists, *manifests)),
            wrong,
        )

    def _manifests(self, location: str) -> list[str]:
        if location not in self._lists:
            self._lists[location] = [
                one["manifest_path"] for one in read_list(location, self._storage).manifests
            ]
        return self._lists[location]

    def _data_files(self, location: str) -> tuple[str, ...]:
        if location not in self._data:
            entries: Any = fastavro.reader(io.BytesIO(self._storage.read(location)))
            self._data[location] = tuple(entry["data_file"]["file_path"] for entry in entries)
        return self._data[location]


def properties_of(state: State) -> Iterator[str]:
    """Yield the tokens that are properties, of all tables of a state."""
    for key, entry in state.scan(NAMES, b"", None):
        if decode_key(key).kind == TABLE:
            draft = TableDraft(state.get(entry.pointer, Table), state, now_ms=0)
            yield from (name for name in draft.properties if name.startswith(TOKEN))
