"""Requests of simulated clients to a catalog, over the protocol."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from random import Random
from types import SimpleNamespace
from typing import Any, Literal, cast

from polaris_spark.access.control import AccessControl
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.entities.entities import Context
from polaris_spark.catalog.entities.properties import Binding
from polaris_spark.catalog.manifests.manifest_files import ManifestFiles
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.config import Properties
from polaris_spark.rest.session import Session
from tests.rest.client import Answer, Client, path
from tests.simulation.refreshes.lake import Json, Rows
from tests.simulation.refreshes.rules import CatalogObserver
from tests.simulation.world import Files as SimulatedFiles
from tests.simulation.world import Process, World

Outcome = Literal["done", "refused", "unknown"]

WAREHOUSE = "file:///simulated/warehouse"
_REPEATS = 3


class UnavailableError(Exception):
    """The catalog did not answer a request."""


def context_of(process: Process, properties: Properties, stored: Mapping[str, str]) -> Context:
    """Return the context of changes by a simulated process.

    Args:
        properties: properties of the session.
        stored: properties of the catalog.
    """
    return Context(
        clock=process.clock,
        warehouse=WAREHOUSE,
        binding=Binding(properties, stored, None),
        shared_locations=False,
        operation_lifetime_ms=properties.idempotency_key_lifetime,
        trusts=process.leases.store_clock.trusts,
        settings=b"simulated",
    )


def session_of(
    process: Process, row: CatalogRow, properties: Properties, manifests: ManifestFiles | None = None
) -> Session:
    """Return a session of a simulated process.

    Args:
        manifests: reads manifest lists and manifests.
    """
    context = context_of(process, properties, row.properties)._replace(manifest_files=manifests)
    connection = SimpleNamespace(
        clock=process.clock,
        backend=process.backend,
        store_clock=process.leases.store_clock,
        serving=lambda *_: SimpleNamespace(require=lambda: None),  # realms do not end here
    )
    files = cast("Any", SimulatedFiles(process.world, process.clock, process.rng))
    catalog = Catalog(process.references, row, context, files)
    access = AccessControl(catalog.references, monotonic=lambda: 0.0)  # looked up once, whatever the time
    return Session(properties, cast("Any", connection), catalog, "me", access=access)


class Requests:
    """Sends requests of one thread, and repeats those that were not answered."""

    def __init__(self, world: World, process: Process, session: Session, rng: Random) -> None:
        assert isinstance(world.observer, CatalogObserver)
        self.world = world
        self.process = process
        self.session = session
        self.rng = rng
        self.observer = world.observer
        self.client = Client(session)

    def load(self, where: str) -> Json | None:
        """Return the metadata of a table; None if it does not exist."""
        answer = self._send("GET", where, None)
        if answer.status == 404:
            return None
        if answer.status >= 500:
            raise UnavailableError(str(answer))
        metadata: Json = answer.body["metadata"]
        return metadata

    def change(self, method: str, where: str, body: Any = None) -> Outcome:
        """Send a request that changes something. It is repeated with the same key while its outcome is unknown."""
        # A key is refused as too old if a clock far ahead made a commit, so there is none in the calm end.
        key, doubt = None if self.world.calm else key_of(self.process, self.rng), False
        for _ in range(_REPEATS):
            answer = self._send(method, where, body, key)
            if answer.status < 300:
                return "done"
            if (answer.status < 500 and answer.status != 404) or (answer.status == 404 and not doubt):
                return "unknown" if doubt else "refused"
            doubt = doubt or answer.status != 503
            if self.rng.random() < 0.5:
                break
            self.process.clock.sleep_ms(1_000 * self.rng.random())
        return "unknown" if doubt else "refused"

    def commit(self, where: str, requirements: list[Json], updates: list[Json]) -> Outcome:
        """Commit updates to a table."""
        return self.change("POST", where, {"requirements": requirements, "updates": updates})

    def write(
        self,
        where: str,
        before: Json,
        rows: Rows,
        operation: str,
        summary: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Commit a snapshot with these rows to a table.

        Args:
            before: metadata of the table on which the snapshot is based.
        """
        id = self.rng.getrandbits(62) + 1
        self.observer.rows_of[id] = rows
        parent = before.get("current-snapshot-id", -1)
        snapshot: Json = {
            "snapshot-id": id,
            "sequence-number": before["last-sequence-number"] + 1,
            "timestamp-ms": max(self.process.clock.now_ms(), before["last-updated-ms"]),
            "manifest-list": f"{before['location']}/metadata/snap-{id}.avro",
            "summary": {"operation": operation, "total-records": str(sum(rows.values())), **(summary or {})},
            "schema-id": before["current-schema-id"],
        }
        self.observer.files[snapshot["manifest-list"]] = b""
        if parent != -1:
            snapshot["parent-snapshot-id"] = parent
        return self.commit(
            where,
            [
                {"type": "assert-table-uuid", "uuid": before["table-uuid"]},
                {
                    "type": "assert-ref-snapshot-id",
                    "ref": "main",
                    "snapshot-id": None if parent == -1 else parent,
                },
            ],
            [
                {"action": "add-snapshot", "snapshot": snapshot},
                {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": id},
            ],
        )

    def add_column(self, where: str, before: Json, name: str) -> Outcome:
        """Add a column to a table."""
        field = {"id": before["last-column-id"] + 1, "name": name, "type": "long", "required": False}
        return self._set_columns(where, before, [*_columns(before), field])

    def drop_column(self, where: str, before: Json, name: str) -> Outcome:
        """Drop a column of a table."""
        return self._set_columns(where, before, [one for one in _columns(before) if one["name"] != name])

    def _set_columns(self, where: str, before: Json, fields: list[Json]) -> Outcome:
        last, schema = before["last-column-id"], before["current-schema-id"]
        known = [one["schema-id"] for one in before["schemas"] if one["fields"] == fields]
        added = [] if known else [{"action": "add-schema", "schema": {"type": "struct", "fields": fields}}]
        return self.commit(
            where,
            [
                {"type": "assert-table-uuid", "uuid": before["table-uuid"]},
                {"type": "assert-last-assigned-field-id", "last-assigned-field-id": last},
                {"type": "assert-current-schema-id", "current-schema-id": schema},
            ],
            [*added, {"action": "set-current-schema", "schema-id": known[0] if known else -1}],
        )

    def _send(self, method: str, where: str, body: Any, key: str | None = None) -> Answer:
        began = self.world.tick()
        answer = self.client.send(method, where, body, key=key)
        self.process.clock.check()
        self.world.note(self.process.name, method, where, answer.status)
        if answer.status == 500:
            gone = self.observer.gone
            if not any(str(id) in str(answer) for id, when in gone.items() if when > began):
                self.observer.blame(f"{method} {where} by {self.process.name} was answered by {answer}")
        return answer


def key_of(process: Process, rng: Random) -> str:
    """Return an idempotency key: a UUIDv7 with the current time of a process's clock."""
    fields = process.clock.now_ms() << 80 | rng.getrandbits(80)
    fields &= ~(0xF << 76 | 0x3 << 62)
    return str(uuid.UUID(int=fields | 0x7 << 76 | 0x2 << 62))


def _columns(metadata: Json) -> list[Json]:
    schemas = {one["schema-id"]: one for one in metadata["schemas"]}
    columns: list[Json] = schemas[metadata["current-schema-id"]]["fields"]
    return columns


def storage(view: str) -> str:
    """Return the path of the storage table of a view."""
    return f"{path('db', view)}/tables/storage"
