"""Random requests to views."""

from __future__ import annotations

import copy
from random import Random

from tests.differential.requests import LOCATION, START, Request
from tests.differential.schemas import Json, changed_schema, columns, random_schema

UUID = "fa6506c3-7681-40c8-86dc-e36561f83385"

_DIALECTS = ["spark", "trino", "Spark", "duckdb"]


class ViewRequests:
    """Requests to one view, drawn by a seeded generator that reads the view's metadata."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = START
        self.number = 0
        self.hostile = rng.choice([0.0, 0.05, 0.15])

    def first(self) -> Request:
        """Return the updates that create the view."""
        schema = random_schema(self.rng, 3, hostile=self.hostile / 3)
        updates: list[Json] = [
            {"action": "assign-uuid", "uuid": UUID},
            {"action": "set-location", "location": LOCATION},
            {"action": "add-schema", "schema": schema},
            {"action": "add-view-version", "view-version": self._version(1, [], -1)},
            {"action": "set-current-view-version", "view-version-id": -1},
        ]
        return self._request([], updates)

    def next(self, metadata: Json) -> Request:
        """Return a commit to the view in its present state."""
        rng = self.rng
        self.now += rng.choice([0, 1000, 100_000])
        makers = [
            self._schema,
            self._replace,
            self._replace,
            self._replace,
            self._current,
            self._properties,
            self._plain,
        ]
        updates: list[Json] = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            updates += rng.choice(makers)(metadata)
        requirements: list[Json] = []
        if rng.random() < 0.3:
            requirements.append({"type": "assert-view-uuid", "uuid": metadata["view-uuid"]})
        if self._wrong():
            requirements.append(
                rng.choice(
                    [
                        {"type": "assert-view-uuid", "uuid": "00000000-0000-0000-0000-000000000000"},
                        {"type": "assert-table-uuid", "uuid": metadata["view-uuid"]},
                        {"type": "assert-create"},
                        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
                        {"type": "assert-nonsense"},
                        {"type": "assert-view-uuid"},
                    ]
                )
            )
        return self._request(requirements, updates)

    def _request(self, requirements: list[Json], updates: list[Json]) -> Request:
        self.number += 1
        where = f"{LOCATION}/metadata/{self.number:05d}-x.metadata.json"
        return Request("commit", requirements, updates, {}, self.now, where)

    def _wrong(self) -> bool:
        return self.rng.random() < self.hostile

    def _version(self, id: int, known: list[Json], schema_id: int) -> Json:
        rng = self.rng
        representations = [
            {"type": "sql", "sql": f"SELECT {rng.randrange(3)}", "dialect": dialect}
            for dialect in rng.sample(_DIALECTS, 2 if rng.random() < 0.1 else 1)
        ]
        if rng.random() < 0.8:
            representations[0]["dialect"] = "spark"
        if self._wrong():
            representations.append(
                rng.choice([{"type": "drawing"}, {"type": "sql", "sql": "x"}, {"sql": "x"}])
            )
        version: Json = {
            "version-id": id,
            "schema-id": schema_id,
            "timestamp-ms": self.now + rng.choice([0, -1000]),
            "summary": rng.choice([{"engine": "x"}, {"engine": "y"}, {}]),
            "default-namespace": rng.choice([["a"], ["a", "b"]]),
            "representations": representations,
        }
        if rng.random() < 0.3:
            version["default-catalog"] = rng.choice(["c", "d"])
        if known and rng.random() < 0.2:
            version = copy.deepcopy(rng.choice(known)) | {"timestamp-ms": self.now}
        if self._wrong():
            version.pop(rng.choice(list(version)))
        return version

    def _replace(self, metadata: Json) -> list[Json]:
        rng = self.rng
        known = metadata["versions"]
        highest = max(version["version-id"] for version in known)
        id = rng.choice([highest + 1] * 5 + [1, highest, highest + 7])
        schemas = [schema["schema-id"] for schema in metadata["schemas"]]
        updates = self._schema(metadata) if rng.random() < 0.4 else []
        schema_id = rng.choice([*schemas, *([-1] if updates else [])] + [4242] * self._wrong())
        updates.append({"action": "add-view-version", "view-version": self._version(id, known, schema_id)})
        if rng.random() < 0.85:
            updates.append({"action": "set-current-view-version", "view-version-id": -1})
        return updates

    def _schema(self, metadata: Json) -> list[Json]:
        base = self.rng.choice(metadata["schemas"])
        last = max((field["id"] for field in columns(base)), default=0)
        same = self.rng.random() < 0.2
        return [{"action": "add-schema", "schema": base if same else changed_schema(self.rng, 3, base, last)}]

    def _current(self, metadata: Json) -> list[Json]:
        ids = [version["version-id"] for version in metadata["versions"]]
        return [
            {"action": "set-current-view-version", "view-version-id": self.rng.choice([*ids, *ids, -1, 4242])}
        ]

    def _properties(self, metadata: Json) -> list[Json]:
        rng = self.rng
        names = ["version.history.num-entries", "replace.drop-dialect.allowed", "comment", "format-version"]
        if rng.random() < 0.3:
            return [{"action": "remove-properties", "removals": rng.sample(names, rng.randint(0, 2))}]
        values = [
            {
                "version.history.num-entries": rng.choice(
                    ["1", "2", "3", "10"] + ["0", "x", "-1"] * self._wrong()
                )
            },
            {"replace.drop-dialect.allowed": rng.choice(["true", "TRUE", "false", "x"])},
            {"comment": "naïve ☃", "format-version": "9"},
            {},
        ]
        return [{"action": "set-properties", "updates": rng.choice(values)}]

    def _plain(self, metadata: Json) -> list[Json]:
        rng = self.rng
        plain: list[Json] = [
            {"action": "set-location", "location": rng.choice([LOCATION, LOCATION + "2", LOCATION + "/"])},
            {"action": "assign-uuid", "uuid": metadata["view-uuid"]},
            {"action": "upgrade-format-version", "format-version": 1},
        ]
        if self._wrong():
            plain = [
                {"action": "assign-uuid", "uuid": "00000000-0000-0000-0000-000000000000"},
                {"action": "upgrade-format-version", "format-version": rng.choice([0, 2, "1"])},
                {"action": "set-default-spec", "spec-id": 0},
                {"action": "remove-snapshots", "snapshot-ids": [1]},
                {"action": "add-view-version"},
                {"action": "nonsense"},
                {},
            ]
        return [rng.choice(plain)]
