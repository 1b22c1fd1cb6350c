"""A random catalog with objects of all kinds: names that must be escaped, renames, drops, branches, tags, reports."""

from __future__ import annotations

import random
from pathlib import Path
from urllib.parse import quote

from polaris_spark.catalog.catalogs.references import head_name, tag_name
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.system.tasks import Tasks
from tests.names import unchecked_names
from tests.rest.materialized import create_materialized_view, refresh
from tests.rest.test_metrics import COMMIT, SCAN
from tests.views.catalogs import SCHEMA, Catalog

NAMES = (
    "a",
    "b",
    "a.b",
    "`",
    "`a",
    "\x01",
    "\x02x",
    "ü",
    "A",
    "a b",
    "x/y",
    "%25",
    "''",
    '"',
    ".",
    "..",
    "日本",
    "_",
)
"""Parts of names, as many of which some part of the way escapes."""


class Lake:
    """A catalog that is changed at random."""

    def __init__(self, path: Path, seed: int, *, catalog: str, clock: ManualClock) -> None:
        self.random = random.Random(f"{catalog} {seed}")
        self.clock = clock
        self.catalog = Catalog(
            path, catalog=catalog, clock=clock, principal=self.random.choice(["ann", "bob"])
        )
        self.namespaces: list[tuple[str, ...]] = []
        self.entities: dict[tuple[tuple[str, ...], str], str] = {}
        """Tables and views by namespace and name, to their kind."""
        self.snapshots = 0

    def change(self, times: int) -> None:
        """Make this number of changes, each at its own time. Some names are valid in earlier releases only."""
        with unchecked_names():
            self._change(times)

    def _change(self, times: int) -> None:
        kinds = (
            self._namespace,
            self._table,
            self._view,
            self._snapshot,
            self._schema,
            self._rename,
            self._drop,
        )
        self._namespace()
        for _ in range(times):
            self.random.choices(kinds, (4, 7, 2, 5, 2, 2, 2))[0]()
            self.clock.advance(self.random.choice([1, 1_000, 3_600_000]))
        while set(self.entities.values()) != {"tables", "views"}:
            self._table()
            self._view()
        self._snapshot()

    def finish(self) -> None:
        """Add objects that occur once: materialized views, a branch, a dropped branch, reports, a task."""
        session = self.catalog.session
        for name in ("stored", "st.o`red"):
            create_materialized_view(session.catalog, name, "SELECT 1 AS a", namespace=self.namespaces[0])
            where = f"{_place(self.namespaces[0])}/views/{quote(name, safe='')}"
            uuid = self.catalog.request("GET", where)["metadata"]["view-uuid"]
            storage = f"{_place((*self.namespaces[0], name))}/tables/storage"
            for number, before in ((1, None), (2, 1)):
                body = refresh(uuid, number, number, replaces=before, lineage=self._lineage())
                self.catalog.request("POST", storage, body)
        references, row = session.catalog.references, session.catalog.row
        for branch in ("dev", "gone@1/x"):
            references.create(head_name(row, branch), Operation(b"", "ann"), source=session.catalog.head())
        references.drop(head_name(row, "gone@1/x"), Operation(b"", "ann"))
        references.create(tag_name(row, "v1"), Operation(b"", "ann"), source=session.catalog.head())
        tables = [place for place, kind in self.entities.items() if kind == "tables"]
        for position, (namespace, name) in enumerate(tables):
            if position == 0 or self.random.random() < 0.3:
                report = self.random.choice([SCAN, COMMIT])
                self.catalog.request(
                    "POST", f"{_place(namespace)}/tables/{quote(name, safe='')}/metrics", report
                )
                session.catalog.metrics.flush()
                self.clock.advance(1_000)
        with Tasks(session.connection.backend, self.clock).running("sweep", row.name):
            self.clock.advance(10)

    def _lineage(self) -> dict[str, object]:
        """Return the lineage of a view with one column, from two columns of a table and from a view."""
        table = {"type": "table", "namespace": [self._name()], "name": self._name(), "columns": ["x", "y"]}
        view = {"type": "view", "catalog": self._name(), "namespace": [], "name": self._name(), "uuid": "u"}
        return {"sources": [table, view], "edges": {"IDENTITY": [[0, 0, 1]], "FILTER": [[None, 0, 0]]}}

    def _name(self) -> str:
        return "".join(self.random.choices(NAMES, k=self.random.choice([1, 1, 1, 2])))

    def _namespace(self) -> None:
        above = self.random.choice([(), *self.namespaces])
        namespace = (*above, self._name())
        if namespace not in self.namespaces:
            self.catalog.namespace(*namespace, k=self._name())
            self.namespaces.append(namespace)

    def _table(self) -> None:
        place = (self.random.choice(self.namespaces), self._name())
        if place not in self.entities:
            self.catalog.table(_path(place[0]), place[1], properties={"k": self._name()})
            self.entities[place] = "tables"

    def _view(self) -> None:
        place = (self.random.choice(self.namespaces), self._name())
        if place not in self.entities:
            self.catalog.view(_path(place[0]), place[1], f"SELECT '{self.random.random()}' AS n")
            self.entities[place] = "views"

    def _chosen(self, kind: str = "tables") -> tuple[tuple[str, ...], str] | None:
        found = [place for place, one in self.entities.items() if one == kind]
        return self.random.choice(found) if found else None

    def _snapshot(self) -> None:
        if place := self._chosen():
            self.snapshots += 1
            namespace, name = _path(place[0]), quote(place[1], safe="")
            self.catalog.snapshot(namespace, name, self.snapshots)
            if self.random.random() < 0.5:
                tag = {"action": "set-snapshot-ref", "type": "tag", "snapshot-id": self.snapshots}
                age = (
                    {"max-ref-age-ms": self.random.randrange(1, 10**6)} if self.random.random() < 0.5 else {}
                )
                self.catalog.update(
                    namespace, name, {**tag, **age, "ref-name": f"{self._name()}{self.snapshots}"}
                )

    def _schema(self) -> None:
        if place := self._chosen():
            doc = f"{self._name()} {self.random.random()}"  # a schema that the table has already is not added
            field = {"id": 3, "name": self._name(), "required": False, "type": "string", "doc": doc}
            schema = {**SCHEMA, "schema-id": 1, "fields": [*SCHEMA["fields"], field]}
            add = {"action": "add-schema", "schema": schema}
            current = {"action": "set-current-schema", "schema-id": -1}
            self.catalog.update(_path(place[0]), quote(place[1], safe=""), add, current)

    def _rename(self) -> None:
        kind = self.random.choice(["tables", "views"])
        place, target = self._chosen(kind), (self.random.choice(self.namespaces), self._name())
        if place and target not in self.entities:
            source, destination = ({"namespace": levels, "name": name} for levels, name in (place, target))
            self.catalog.request("POST", f"v1/{kind}/rename", {"source": source, "destination": destination})
            self.entities[target] = self.entities.pop(place)

    def _drop(self) -> None:
        kind = self.random.choice(["tables", "views"])
        if place := self._chosen(kind):
            self.catalog.request("DELETE", f"{_place(place[0])}/{kind}/{quote(place[1], safe='')}")
            del self.entities[place]


def random_lake(path: Path, seed: int, *, changes: int = 60) -> list[Catalog]:
    """Return three catalogs of one store. Two are changed at random, and the last one is empty."""
    clock = ManualClock()
    lakes = [Lake(path, seed, catalog=name, clock=clock) for name in ("one", "t.w`o")]
    for lake in lakes:
        lake.change(changes)
        lake.finish()
    return [*[lake.catalog for lake in lakes], Catalog(path, catalog="empty", clock=clock)]


def _path(namespace: tuple[str, ...]) -> str:
    return "%1F".join(quote(level, safe="") for level in namespace)


def _place(namespace: tuple[str, ...]) -> str:
    return f"v1/namespaces/{_path(namespace)}"
