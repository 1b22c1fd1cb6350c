"""Random requests to tables: valid requests of clients, and invalid ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from polaris_spark.catalog.metadata.table_updates import RESERVED_PROPERTIES
from tests.differential.requests import LOCATION, START, Request, random_requirements
from tests.differential.schemas import Json, changed_schema, random_order, random_schema, random_spec

PROPERTIES = [
    ("write.metadata.previous-versions-max", ["1", "2", "3", "0", "-1", "100"]),
    ("schema.name-mapping.default", ['[{"field-id":1,"names":["a"]}]']),
    ("write.format.default", ["parquet", "orc"]),
    ("owner", ["me", "", "naïve ☃"]),
    ("format-version", ["1", "2", "3", "4"]),
    ("uuid", ["11111111-2222-3333-4444-555555555555"]),
    ("current-snapshot-id", ["7"]),
    ("default-partition-spec", ["{}"]),
    ("snapshot-count", ["3"]),
    ("a", ["1", "2"]),
]


class TableRequests:
    """Requests to one table, drawn by a seeded generator that reads the table's metadata."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = START
        self.number = 0
        self.last_snapshot = 100
        self.hostile = rng.choice([0.0, 0.02, 0.1])
        """Probability that a value is invalid."""

    def first(self) -> Request:
        """Return the request that creates the table: a create request, or a commit with `assert-create`."""
        rng = self.rng
        version = rng.choice([1, 2, 2, 3, 3, 3, 4])
        schema = random_schema(rng, version, rng.choice([0, 1, 1, 1, 10]), self.hostile / 5)
        spec = random_spec(rng, schema, 999, with_ids=rng.random() < 0.5) if rng.random() < 0.7 else None
        order = random_order(rng, schema) if rng.random() < 0.5 else None
        if rng.random() < 0.2:
            return self._request([{"type": "assert-create"}], self._creating(version, schema, spec, order))
        properties = {"format-version": str(version), **self._properties(create=True)}
        body: Json = {
            "schema": schema,
            "properties": properties,
            "location": LOCATION + rng.choice(["", "/", ""]),
        }
        body["partition-spec"], body["write-order"] = spec, order
        return self._request([], [], "create", body)

    def next(self, metadata: Json) -> Request:
        """Return a commit to the table in its present state."""
        rng = self.rng
        self.now += rng.choice([0, 1, 1000, 1000, 100_000])
        seen = copy.deepcopy(metadata)
        updates: list[Json] = []
        for _ in range(rng.choice([1, 1, 2, 3, 4, 6])):
            updates += rng.choices(self.kinds(), self.weights())[0](seen)
        return self._request(random_requirements(rng, metadata, self.hostile), updates)

    def kinds(self) -> list[Callable[[Json], list[Json]]]:
        """The functions that make updates."""
        return [kind for kind, _ in self._weighted()]

    def weights(self) -> list[int]:
        """The weight of each function in the random choice."""
        return [weight for _, weight in self._weighted()]

    def _weighted(self) -> list[tuple[Callable[[Json], list[Json]], int]]:
        return [
            (self._append, 8),
            (self._schema, 5),
            (self._spec, 4),
            (self._order, 3),
            (self._ref, 5),
            (self._remove_snapshots, 3),
            (self._statistics, 3),
            (self._set_properties, 3),
            (self._remove_pieces, 3),
            (self._key, 2),
            (self._plain, 2),
        ]

    def _request(
        self, requirements: list[Json], updates: list[Json], verb: str = "commit", body: Json | None = None
    ) -> Request:
        self.number += 1
        where = f"{LOCATION}/metadata/{self.number:05d}-x.metadata.json"
        return Request(verb, requirements, updates, body or {}, self.now, where)

    def _wrong(self) -> bool:
        return self.rng.random() < self.hostile

    def _creating(self, version: int, schema: Json, spec: Json | None, order: Json | None) -> list[Json]:
        """Return the updates that a client sends to commit a transaction that creates its table."""
        rng = self.rng
        updates: list[Json] = [
            {"action": "assign-uuid", "uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1"},
            {"action": "upgrade-format-version", "format-version": version},
            {"action": "add-schema", "schema": schema},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": spec or {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": order or {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": LOCATION},
            {"action": "set-properties", "updates": {"owner": "me"}},
        ]
        if rng.random() < 0.1:
            del updates[rng.randrange(len(updates))]
        if rng.random() < 0.3:
            found = {"last-sequence-number": 0, "format-version": version, "next-row-id": 0}
            updates += self._append(found)
        return updates

    def _properties(self, *, create: bool) -> dict[str, str]:
        rng = self.rng
        drawn = {name: rng.choice(values) for name, values in rng.sample(PROPERTIES, rng.randint(0, 3))}
        if create:
            drawn.pop("format-version", None)
            if self._wrong():
                drawn.update(
                    rng.choice(
                        [
                            {"format-version": "5"},
                            {"format-version": "x"},
                            {"commit.retry.num-retries": "-1"},
                            {"commit.retry.min-wait-ms": "x"},
                            {"encryption.key-id": "k"},
                            {"write.metadata.metrics.column.nothing": "full"},
                            {"write.metadata.metrics.default": "nonsense"},
                            {"write.parquet.compression-codec": "gzip"},
                        ]
                    )
                )
        return drawn

    def _snapshot_ids(self, seen: Json) -> list[int]:
        return [snapshot["snapshot-id"] for snapshot in seen.get("snapshots", [])]

    def _any_snapshot(self, seen: Json) -> int:
        ids = self._snapshot_ids(seen)
        return 4242 if not ids or self._wrong() else self.rng.choice(ids)

    def _append(self, seen: Json) -> list[Json]:
        """Return the update that adds a snapshot, mostly with the update of its branch."""
        rng = self.rng
        version = seen["format-version"]
        self.last_snapshot += 1
        id = self.last_snapshot
        current = seen.get("current-snapshot-id")
        number = seen.get("last-sequence-number", 0) + 1
        snapshot: Json = {
            "snapshot-id": id,
            "timestamp-ms": self.now
            + rng.choice([0, 0, 0, -30_000, 10, -300_000 if rng.random() < 0.2 else 0]),
            "manifest-list": f"{LOCATION}/metadata/snap-{id}.avro",
            "summary": {"operation": rng.choice(["append", "overwrite", "delete"]), "added-records": "10"},
            "schema-id": seen.get("current-schema-id", 0),
        }
        if version > 1 or rng.random() < 0.05:
            snapshot["sequence-number"] = number
        if current not in (None, -1):
            snapshot["parent-snapshot-id"] = current
        if version >= 3 or rng.random() < 0.02:
            snapshot["first-row-id"] = seen.get("next-row-id", 0)
            snapshot["added-rows"] = rng.choice([0, 10, 1000])
            if rng.random() < 0.1:
                snapshot["key-id"] = "k1"
        if self._wrong():
            self._spoil_snapshot(seen, snapshot)
        else:
            seen["last-sequence-number"] = number if version > 1 else 0
            seen["next-row-id"] = seen.get("next-row-id", 0) + snapshot.get("added-rows", 0)
            seen.setdefault("snapshots", []).append(snapshot)
        updates = [{"action": "add-snapshot", "snapshot": snapshot}]
        if rng.random() < 0.8:
            name = rng.choice(["main"] * 6 + ["audit", "b"])
            if name == "main":
                seen["current-snapshot-id"] = id
            updates.append(
                {"action": "set-snapshot-ref", "ref-name": name, "snapshot-id": id, "type": "branch"}
            )
        return updates

    def _spoil_snapshot(self, seen: Json, snapshot: Json) -> None:
        rng = self.rng
        ids = self._snapshot_ids(seen) or [1]
        changes: list[Json] = [
            {"snapshot-id": rng.choice(ids)},
            {"sequence-number": rng.choice([0, 1, 100])},
            {"first-row-id": rng.choice([0, -1, 10**9]), "added-rows": 5},
            {"added-rows": -1},
            {"first-row-id": None},
            {"added-rows": None},
            {"parent-snapshot-id": 4242},
            {"timestamp-ms": self.now + rng.choice([-120_000, 120_000, 30_000])},
            {"summary": {}},
            {"summary": {"added-records": "1"}},
            {"summary": {"operation": 1}},
            {"manifests": ["a", "b"], "manifest-list": None},
            {"manifest-list": 1},
            {"snapshot-id": None},
            {"schema-id": 4242},
        ]
        for name, value in rng.choice(changes).items():
            if value is None:
                snapshot.pop(name, None)
            else:
                snapshot[name] = value
        if rng.random() < 0.2:
            snapshot.pop("parent-snapshot-id", None)

    def _schema(self, seen: Json) -> list[Json]:
        rng = self.rng
        schemas = seen.get("schemas", [])
        current = [schema for schema in schemas if schema["schema-id"] == seen.get("current-schema-id")]
        roll = rng.random()
        if roll < 0.1 or not current:
            return [{"action": "set-current-schema", "schema-id": rng.choice([-1, 0, 1, 2, 4242])}]
        if roll < 0.2:
            schema = copy.deepcopy(rng.choice(schemas))
            if rng.random() < 0.5:
                schema.pop("schema-id", None)
        else:
            schema = changed_schema(rng, seen["format-version"], current[0], seen["last-column-id"])
        updates: list[Json] = [{"action": "add-schema", "schema": schema}]
        if rng.random() < 0.5:
            updates[0]["last-column-id"] = seen["last-column-id"] + rng.choice([0, 5])
        if rng.random() < 0.8:
            updates.append({"action": "set-current-schema", "schema-id": -1})
        return updates

    def _spec(self, seen: Json) -> list[Json]:
        rng = self.rng
        current = self._current(seen, "schemas", "schema-id", "current-schema-id")
        specs = seen.get("partition-specs", [])
        if rng.random() < 0.1 or current is None:
            return [{"action": "set-default-spec", "spec-id": rng.choice([-1, 0, 1, 2, 4242])}]
        if rng.random() < 0.2 and specs:
            spec = copy.deepcopy(rng.choice(specs))
        else:
            with_ids = rng.random() < 0.97
            spec = random_spec(rng, current, seen.get("last-partition-id", 999), with_ids=with_ids)
        updates: list[Json] = [{"action": "add-spec", "spec": spec}]
        if rng.random() < 0.7:
            updates.append({"action": "set-default-spec", "spec-id": -1})
        return updates

    def _order(self, seen: Json) -> list[Json]:
        rng = self.rng
        current = self._current(seen, "schemas", "schema-id", "current-schema-id")
        orders = seen.get("sort-orders", [])
        if rng.random() < 0.1 or current is None:
            return [{"action": "set-default-sort-order", "sort-order-id": rng.choice([-1, 0, 1, 2, 4242])}]
        reuse = rng.random() < 0.2 and orders
        order = copy.deepcopy(rng.choice(orders)) if reuse else random_order(rng, current)
        updates: list[Json] = [{"action": "add-sort-order", "sort-order": order}]
        if rng.random() < 0.7:
            updates.append({"action": "set-default-sort-order", "sort-order-id": -1})
        return updates

    def _current(self, seen: Json, pieces: str, id: str, current: str) -> Json | None:
        found: list[Json] = [piece for piece in seen.get(pieces, []) if piece[id] == seen.get(current)]
        return found[0] if found else None

    def _ref(self, seen: Json) -> list[Json]:
        rng = self.rng
        name = rng.choice(["main", "audit", "b", "v1", "v2", *seen.get("refs", {})])
        if rng.random() < 0.25:
            return [{"action": "remove-snapshot-ref", "ref-name": name}]
        type = "tag" if name.startswith("v") else "branch"
        if self._wrong():
            type = rng.choice(["tag", "branch", "TAG", "leaf"])
        update: Json = {
            "action": "set-snapshot-ref",
            "ref-name": name,
            "snapshot-id": self._any_snapshot(seen),
        }
        update["type"] = type
        if rng.random() < 0.3:
            update["max-ref-age-ms"] = rng.choice([1, 10**10] + [0, -1] * self._wrong())
        if rng.random() < (0.3 if type == "branch" else self.hostile):
            update["min-snapshots-to-keep"] = rng.choice([1, 5] + [0] * self._wrong())
        if rng.random() < (0.3 if type == "branch" else self.hostile):
            update["max-snapshot-age-ms"] = rng.choice([1, 5] + [0] * self._wrong())
        if name == "main" and rng.random() < 0.7:
            seen["current-snapshot-id"] = update["snapshot-id"]
        return [update]

    def _remove_snapshots(self, seen: Json) -> list[Json]:
        rng = self.rng
        ids = self._snapshot_ids(seen)
        chosen = rng.sample(ids, min(len(ids), rng.choice([0, 1, 1, 2, 3])))
        if self._wrong():
            chosen.append(4242)
        return [{"action": "remove-snapshots", "snapshot-ids": chosen}]

    def _statistics(self, seen: Json) -> list[Json]:
        rng = self.rng
        id = self._any_snapshot(seen)
        file: Json = {
            "snapshot-id": id,
            "statistics-path": f"s3://x/{rng.randrange(5)}.puffin",
            "file-size-in-bytes": 10,
        }
        kind = "partition-statistics" if rng.random() < 0.5 else "statistics"
        if rng.random() < 0.3:
            return [{"action": f"remove-{kind}", "snapshot-id": id}]
        if kind == "statistics":
            blob: Json = {"type": "ndv", "snapshot-id": id, "sequence-number": 1, "fields": [1]}
            if rng.random() < 0.5:
                blob["properties"] = {"ndv": "3"}
            file |= {"file-footer-size-in-bytes": 4, "blob-metadata": [blob] * rng.randint(0, 2)}
        if self._wrong():
            file.pop(rng.choice(list(file)))
        update: Json = {"action": f"set-{kind}", kind: file}
        if rng.random() < 0.5:
            update["snapshot-id"] = id
        return [update]

    def _set_properties(self, seen: Json) -> list[Json]:
        rng = self.rng
        if rng.random() < 0.3:
            field = rng.choice(["removals", "removals", "removed"])
            removed = [name for name, _ in rng.sample(PROPERTIES, rng.randint(0, 2))]
            return [{"action": "remove-properties", field: removed}]
        drawn: Json = dict(self._properties(create=False))
        if rng.random() < 0.9:
            drawn = {name: value for name, value in drawn.items() if name not in RESERVED_PROPERTIES}
        if self._wrong():
            drawn["b"] = rng.choice([1, None, True, {}])
        return [{"action": "set-properties", rng.choice(["updates", "updates", "updated"]): drawn}]

    def _remove_pieces(self, seen: Json) -> list[Json]:
        rng = self.rng
        what = rng.choice(["schema", "spec"])
        pieces = seen.get("schemas" if what == "schema" else "partition-specs", [])
        current = seen.get("current-schema-id" if what == "schema" else "default-spec-id", 0)
        ids = [piece[f"{what}-id"] for piece in pieces if piece[f"{what}-id"] != current or self._wrong()]
        chosen = rng.sample(ids, min(len(ids), rng.choice([0, 1, 2])))
        if self._wrong():
            chosen.append(rng.choice([4242, -1]))
        action = "remove-schemas" if what == "schema" else "remove-partition-specs"
        return [{"action": action, f"{what}-ids": chosen}]

    def _key(self, seen: Json) -> list[Json]:
        rng = self.rng
        id = rng.choice(["k1", "k2", "k3"])
        if rng.random() < 0.3:
            return [{"action": "remove-encryption-key", "key-id": id}]
        key: Json = {"key-id": id, "encrypted-key-metadata": rng.choice(["a2V5", "bWV0YQ=="])}
        if rng.random() < 0.4:
            key["encrypted-by-id"] = "k0"
        if rng.random() < 0.3:
            key["properties"] = {"a": "b"}
        if self._wrong():
            key.pop(rng.choice(list(key)))
        return [{"action": "add-encryption-key", "encryption-key": key}]

    def _plain(self, seen: Json) -> list[Json]:
        rng = self.rng
        version = seen["format-version"]
        plain: list[Any] = [
            {
                "action": "assign-uuid",
                "uuid": rng.choice([seen.get("table-uuid"), "22222222-2222-3333-4444-5555555555ff"]),
            },
            {"action": "set-location", "location": rng.choice([LOCATION, LOCATION + "2", "s3://other/t"])},
            {"action": "upgrade-format-version", "format-version": min(4, version + rng.choice([0, 0, 1]))},
        ]
        if self._wrong():
            plain = [
                {"action": "upgrade-format-version", "format-version": rng.choice([1, 5, 0, -1, "2"])},
                {"action": "set-location", "location": rng.choice(["", None, "/plain/path", LOCATION + "/"])},
                {"action": "assign-uuid"},
                {"action": "set-current-view-version", "view-version-id": 1},
                {"action": "nonsense"},
                {"action": "SET-LOCATION", "location": LOCATION},
                {},
            ]
        return [rng.choice(plain)]


class WideTableRequests(TableRequests):
    """Requests that also set and remove hundreds of tags and properties at once."""

    def _weighted(self) -> list[tuple[Callable[[Json], list[Json]], int]]:
        return [*super()._weighted(), (self._many_refs, 8), (self._many_properties, 8)]

    def _many_refs(self, seen: Json) -> list[Json]:
        rng = self.rng
        if rng.random() < 0.3:
            gone = self._most_of([name for name in seen.get("refs", {}) if name != "main"])
            return [{"action": "remove-snapshot-ref", "ref-name": name} for name in gone]
        ids = self._snapshot_ids(seen)
        names = self._names() if ids else []
        return [
            {
                "action": "set-snapshot-ref",
                "ref-name": name,
                "snapshot-id": rng.choice(ids),
                "type": "tag" if name.startswith("v") else "branch",
                **({"max-ref-age-ms": 10**10} if rng.random() < 0.3 else {}),
            }
            for name in names
        ]

    def _many_properties(self, seen: Json) -> list[Json]:
        rng = self.rng
        if rng.random() < 0.3:
            gone = self._most_of(list(seen.get("properties", {})))
            return [{"action": "remove-properties", "removals": gone}]
        values = ["", "1", "naïve ☃", "x" * 60]
        return [{"action": "set-properties", "updates": {name: rng.choice(values) for name in self._names()}}]

    def _names(self) -> list[str]:
        """Return hundreds of names. Some of them may be used already, and some are long or not ASCII."""
        prefixes = ["v", "v", "b.", "v naïve ☃ ", "v/" + "long" * 200]
        return [f"{self.rng.choice(prefixes)}{n}" for n in self.rng.sample(range(600), 200)]

    def _most_of(self, names: list[str]) -> list[str]:
        """Return half of some names, or almost all of them."""
        return self.rng.sample(names, int(len(names) * self.rng.choice([0.5, 0.99])))
