"""Cost of access control: loads of a table in process with 10,000 grants and 1,000 principals, and without any."""

from __future__ import annotations

import json
from pathlib import Path

import polaris_spark
from benchmarks.findings import Finding
from benchmarks.measurement import Rate, compare, in_turns, run_threads
from polaris_spark import Session
from polaris_spark.access import securables
from polaris_spark.access.bootstrap import bootstrap
from polaris_spark.access.changes import AccessChange, encode_privileges
from polaris_spark.access.control import changed
from polaris_spark.access.credentials import Credentials, hashed
from polaris_spark.access.places import place_of
from polaris_spark.access.rows import (
    ACCESS,
    ASSIGNMENTS,
    CLIENTS,
    GRANTS,
    PRINCIPALS,
    ROLES,
    Principal,
    PrincipalRole,
    principal_key,
    principal_role_key,
)
from polaris_spark.catalog.rows import TABLE, id_bytes
from polaris_spark.commits.change import Operation
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State
from polaris_spark.index import Entry

PRINCIPALS_MADE = 1_000
GRANTS_MADE = 10_000
_SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}]}
_PATH = "v1/namespaces/db/tables/t"


class _Many(AccessChange[None]):
    """Adds many principals with a role each, and many grants, in one commit."""

    action = "create-principal"

    def __init__(
        self, session: Session, granted: bytes, credentials: Credentials, grants: int, principals: int
    ) -> None:
        super().__init__(session.connection.clock, session.operation())
        self._granted, self._credentials = granted, credentials
        self._grants, self._principals = grants, principals
        self._catalog = session.catalog.row.entity_id

    def apply(self, state: State, prepared: int) -> None:
        secret = hashed(self._credentials.secret, prepared)
        value = Entry(value=encode_privileges(["TABLE_READ_DATA"]))
        roles = []
        for number in range(self._principals):
            name = f"p{number}"
            client = self._credentials.client_id if number == 0 else f"client{number}"
            role = PrincipalRole(state.new_id(), f"r{number}", prepared)
            row = Principal(state.new_id(), name, client, prepared, secrets=(secret,))
            state.put(PRINCIPALS, principal_key(name), Entry(state.add(row), id_bytes(row.entity_id)))
            state.put(CLIENTS, client.encode(), Entry(value=principal_key(name)))
            state.put(ROLES, principal_role_key(role.name), Entry(state.add(role), id_bytes(role.entity_id)))
            state.put(ASSIGNMENTS, id_bytes(row.entity_id) + id_bytes(role.entity_id), Entry())
            roles.append(role.entity_id)
        state.put(GRANTS, self._granted + id_bytes(roles[0]), value)
        for number in range(self._grants - 1):
            other = securables.entity(self._catalog, state.new_id())
            state.put(GRANTS, other + id_bytes(roles[number % len(roles)]), value)
        done = self.operation
        state.log(LogEntry(done.id, done.principal, prepared, self.action, roles[0], principal_key("p0")))

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


class _Side:
    """A catalog with one table, with or without access control."""

    def __init__(self, folder: Path, *, has_access: bool, grants: int, principals: int) -> None:
        store = f"sqlite:///{folder}/catalog.db"
        first = polaris_spark.connect(store=store, warehouse=str(folder), metadata_files="never")
        self.session = first
        for path, body in (
            ("v1/namespaces", {"namespace": ["db"]}),
            ("v1/namespaces/db/tables", {"name": "t", "schema": _SCHEMA}),
        ):
            assert first.request("POST", path, None, json.dumps(body))[0] == 200
        if has_access:
            catalog = first.catalog
            table = place_of(catalog, catalog.head(), ("db",), "t", TABLE).chain[0]
            bootstrap(catalog.references, Operation(b"", "benchmark"), "root", None)
            credentials = Credentials.new()
            first.catalog.references.commit(ACCESS, _Many(first, table, credentials, grants, principals))
            changed()
            self.session = polaris_spark.connect(
                store=store, warehouse=str(folder), metadata_files="never", credential=credentials.text()
            )
            first.close()

    def load(self, headers: dict[str, str] | None = None) -> int:
        """Load the table; return the status."""
        return self.session.request("GET", _PATH, None, None, headers)[0]


def measure(folder: Path, *, rounds: int, calls: int, quick: bool = False) -> list[Finding]:
    """Measure loads per second of one table, of which the caller holds a grant on the table itself.

    Args:
        folder: folder for stores and files.
        calls: number of loads in one round.
    """
    grants, principals = (100, 10) if quick else (GRANTS_MADE, PRINCIPALS_MADE)
    sides = []
    for name, has_access in (("with", True), ("without", False)):
        (folder / name).mkdir()
        sides.append(_Side(folder / name, has_access=has_access, grants=grants, principals=principals))
    ours, plain = sides
    try:
        assert ours.load() == plain.load() == 200

        def rate(side: _Side) -> Rate:
            return run_threads(1, calls, lambda _, __: side.load())

        mine, theirs = in_turns(rounds, [lambda: rate(ours), lambda: rate(plain)])
        what = f"load_table/s, {grants:,} grants, {principals:,} principals"
        return [compare(what, mine, theirs, least=1 / 1.2, beside="without access control")]
    finally:
        for side in sides:
            side.session.close()
