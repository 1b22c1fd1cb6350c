"""Every head of a store that can be reached or recovered: of each realm, catalog and branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.identifiers import dotted
from polaris_spark.catalog.references import CATALOGS
from polaris_spark.catalog.rows import CATALOG, NAMES, CatalogRow
from polaris_spark.clock import Clock
from polaris_spark.commits.publishing import read_head
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import Snapshot
from polaris_spark.errors import CorruptionError
from polaris_spark.index.keys import children, decode_key
from polaris_spark.names import MAIN
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.realms import MOVED_TO, RealmRecord, Realms, RealmState
from polaris_spark.system.recovery.lost import refuse_lost, unlisted
from polaris_spark.system.registry import REFERENCES, ROOT, Registered, listed_in

_GONE = (RealmState.PURGING, RealmState.PURGED, RealmState.GONE)
"""States from which no realm comes back."""

_SERVED = (RealmState.ACTIVE, RealmState.INACTIVE)
"""States of realms whose registry lists every reference; one that is being loaded has rows before that."""

Objects = Callable[[RealmRecord], ObjectStore]
"""The objects of a realm."""


class StoreHead(NamedTuple):
    """The head of a catalog's branch."""

    realm: str
    """Instance id of the realm."""
    catalog: str
    """For messages: realm and catalog, and the branch unless it is `main`."""
    reference: str
    head: Head
    properties: Mapping[str, str]
    """The catalog's."""
    grace_beyond_ms: int = 0
    """How much longer (or shorter) its catalog's grace period is than that of the session that reads it."""
    moved: bool = False
    """Whether another store serves its realm by now: this is what it was then."""

    def snapshot(self, store: ObjectStore) -> Snapshot:
        """Its commit, opened for reading."""
        return Snapshot(store, b"", self.head, store.get(self.head.commit, Commit))

    def owner(self, key: bytes) -> str:
        """A table or view of it for messages, by its key in the index of names."""
        decoded = decode_key(key)
        return f"{self.catalog}.{dotted((*decoded.path, decoded.name))}"


def store_heads(backend: Backend, objects: Objects, clock: Clock) -> list[StoreHead]:
    """The newest heads of all branches of all catalogs of a store, read now.

    Raises:
        CorruptionError: one cannot be read, or was lost with its row or its registration: nobody can say what it needs.
    """
    records = [record for record in Realms(backend, clock).all() if record.state not in _GONE]
    return [head for record in records for head in _of_realm(record, objects(record), clock)]


def _of_realm(record: RealmRecord, store: ObjectStore, clock: Clock) -> Iterator[StoreHead]:
    if record.state in _SERVED and MOVED_TO not in record.properties:
        _refuse_unlisted(record, store)
    row = store.backend.read_reference(record.instance, ROOT)
    if row is None:  # it is being made
        return
    registry = _open(store, read_head(row, ROOT))
    registered = listed_in(registry.index(REFERENCES))
    catalogs: dict[str, CatalogRow] = {}
    for one in registered:
        if one.name == CATALOGS:
            catalogs = _catalogs(store, _head(store, one, clock))
    for one in registered:
        prefix, found, branch = one.name.partition("/heads/")
        if not found or not prefix.startswith("cat/"):
            continue
        head = _head(store, one, clock)
        if head.given_up:  # since the registry was read
            continue
        catalog = catalogs.get(prefix[4:])
        name = f"{record.name}.{prefix if catalog is None else catalog.name}"
        name = name if branch == MAIN else f"{name}@{branch}"
        properties = {} if catalog is None else catalog.properties
        yield StoreHead(
            record.instance, name, one.name, head, properties, moved=MOVED_TO in record.properties
        )


def _refuse_unlisted(record: RealmRecord, store: ObjectStore) -> None:
    for row_name, head in unlisted(store):
        if not head.sealed:
            raise CorruptionError(
                f"the registry of realm {record.name!r} does not list reference {row_name!r}, which was not dropped: "
                "run recover first"
            )


def _head(store: ObjectStore, registered: Registered, clock: Clock) -> Head:
    """Its newest head; of one whose row is not written yet, the first."""
    row = store.backend.read_reference(store.realm, registered.row_name)
    if row is None and registered.registration.state == "live":
        refuse_lost(store, registered, clock)
        row = store.backend.read_reference(store.realm, registered.row_name)
    return registered.first_head() if row is None else read_head(row, registered.row_name)


def _catalogs(store: ObjectStore, head: Head) -> dict[str, CatalogRow]:
    """Catalogs by what names of their references begin with."""
    names = _open(store, head).index(NAMES)
    ids = [entry.pointer for _, entry in names.range(*children((), CATALOG))]
    return {f"{row.entity_id:x}": row for row in store.get_many(ids, CatalogRow).values()}


def _open(store: ObjectStore, head: Head) -> Snapshot:
    return Snapshot(store, b"", head, store.get(head.commit, Commit))
