"""Every kind of request whose size can grow. `growth` measures how its cost grows."""

from __future__ import annotations

from itertools import count
from typing import Any

from tests.rest.client import SCHEMA, VIEW_VERSION, Client, Json, path, table, tables, view
from tests.rest.growth import Action, Prepare


def column(id: int, name: str = "", type: Any = "long", **rest: Any) -> Json:
    """A field of a struct."""
    return {"id": id, "name": name or f"c{id}", "required": False, "type": type, **rest}


def struct(fields: list[Json], **rest: Any) -> Json:
    """A schema."""
    return {"type": "struct", "fields": fields, **rest}


def snapshot(id: int, **rest: Any) -> Json:
    """The update that adds a snapshot without a parent."""
    made = {
        "snapshot-id": id,
        "sequence-number": id,
        "timestamp-ms": 1_700_000_000_000,
        "manifest-list": f"file:///tmp/growth/{id}",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    return {"action": "add-snapshot", "snapshot": {**made, **rest}}


def tag(id: int, name: str = "", type: str = "tag") -> Json:
    """The update that tags a snapshot."""
    return {"action": "set-snapshot-ref", "ref-name": name or f"t{id}", "snapshot-id": id, "type": type}


def spec(source: int, name: str = "") -> Json:
    """The update that adds a partition spec of one field."""
    fields = [{"name": name or f"p{source}", "source-id": source, "transform": "identity"}]
    return {"action": "add-spec", "spec": {"fields": fields}}


def order(source: int) -> Json:
    """The update that adds a sort order of one field."""
    field = {"source-id": source, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    return {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": [field]}}


def add_schema(*fields: Json) -> Json:
    """The update that adds a schema."""
    return {"action": "add-schema", "schema": struct(list(fields))}


def key(id: int) -> Json:
    """The update that adds an encryption key."""
    text = {"key-id": f"k{id}", "encrypted-key-metadata": "AA=="}
    return {"action": "add-encryption-key", "encryption-key": text}


def statistics(id: int, kind: str = "statistics") -> Json:
    """The update that sets the statistics of a snapshot."""
    file = {"snapshot-id": id, "statistics-path": f"file:///tmp/growth/{id}.stats", "file-size-in-bytes": 1}
    if kind == "statistics":
        file |= {"file-footer-size-in-bytes": 1, "blob-metadata": []}
    return {"action": f"set-{kind}", kind: file}


def of_table(client: Client, updates: list[Json], *, before: list[Json] | None = None, **rest: Any) -> Action:
    """A commit of updates to a table, after a commit of other updates that prepares it."""
    requirements = rest.pop("requirements", [])
    client.create("t", **rest)
    if before:
        client.ok("POST", table("t"), {"requirements": [], "updates": before})
    body = {"requirements": requirements, "updates": updates}
    return lambda: client.ok("POST", table("t"), body)


def wide(size: int) -> Json:
    """A schema of many columns."""
    return struct([column(n + 1) for n in range(size)])


def pairs(size: int, first: Json, second: Json) -> list[Json]:
    """Return the two updates, repeated in turns."""
    return [first, second] * size


def toggled(client: Client, size: int) -> Action:
    """The current schema is changed repeatedly, in a table with many specs and with schemas of many columns."""
    before = [
        *(spec(n + 1, f"p{n}") for n in range(size)),
        {"action": "add-schema", "schema": wide(size + 1)},
    ]
    set_current = [{"action": "set-current-schema", "schema-id": n} for n in (1, 0)]
    return of_table(client, pairs(size, *set_current), before=before, schema=wide(size))


def specs_and_schemas(client: Client, size: int) -> Action:
    """Specs and schemas are added in turns, and each schema becomes the current one."""
    updates: list[Json] = []
    for n in range(size):
        updates += [spec(1, f"p{n}"), add_schema(column(1), column(n + 2))]
        updates.append({"action": "set-current-schema", "schema-id": -1})
    return of_table(client, updates, schema=struct([column(1)]))


def snapshots(size: int) -> list[Json]:
    """Snapshots, each with a tag."""
    return [update for n in range(1, size + 1) for update in (snapshot(n), tag(n))]


def transaction(client: Client, size: int) -> Action:
    """A commit to many tables."""
    changes = []
    for n in range(size):
        client.create(f"t{n}")
        identifier = {"namespace": ["db"], "name": f"t{n}"}
        updates = [{"action": "set-properties", "updates": {"a": "b"}}]
        changes.append({"identifier": identifier, "requirements": [], "updates": updates})
    return lambda: client.ok("POST", "v1/transactions/commit", {"table-changes": changes})


def tables_made(client: Client, size: int) -> Action:
    """A transaction makes many tables."""
    changes = []
    for n in range(size):
        updates = [
            {"action": "upgrade-format-version", "format-version": 2},
            add_schema(column(1)),
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": f"file:///tmp/growth/db/t{n}"},
        ]
        identifier = {"namespace": ["db"], "name": f"t{n}"}
        requirements = [{"type": "assert-create"}]
        changes.append({"identifier": identifier, "requirements": requirements, "updates": updates})
    return lambda: client.ok("POST", "v1/transactions/commit", {"table-changes": changes})


def nested_namespace(client: Client, size: int) -> Action:
    """A table is created in a namespace of many levels."""
    levels = ["n"] * size
    for n in range(size):
        client.namespace(*levels[: n + 1])
    return lambda: client.create("t", tuple(levels))


def of_view(client: Client, updates: list[Json]) -> Action:
    """A commit of updates to a view."""
    request = {"name": "v", "schema": SCHEMA, "view-version": VIEW_VERSION, "properties": {}}
    client.ok("POST", f"{path('db')}/views", request)
    return lambda: client.ok("POST", view("v"), {"updates": updates})


def version(n: int) -> Json:
    """The update that adds a version of a view."""
    sql = [{"type": "sql", "sql": f"select {n + 2}", "dialect": "spark"}]
    added = {**VIEW_VERSION, "version-id": n + 2, "representations": sql}
    return {"action": "add-view-version", "view-version": added}


def merged(client: Client, size: int) -> Action:
    """A commit adds columns to an older schema. They are merged with columns that another commit has added."""
    names = {"properties": {"polaris.schema-merge": "true"}}
    theirs = [
        {"action": "add-schema", "schema": struct([*wide(size)["fields"], column(size + 1, "theirs")])},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    fields = [*wide(size)["fields"], *(column(size + 1 + n, f"mine{n}") for n in range(size))]
    mine = [{"action": "add-schema", "schema": struct(fields)}, theirs[1]]
    required = [{"type": "assert-current-schema-id", "current-schema-id": 0}]
    return of_table(client, mine, before=theirs, schema=wide(size), requirements=required, **names)


def renamed(client: Client, size: int) -> Action:
    """One table is renamed many times."""
    client.create("n0")
    numbers = count()

    def rename() -> None:
        for _ in range(size):
            n = next(numbers)
            ends = [{"namespace": ["db"], "name": f"n{m}"} for m in (n, n + 1)]
            client.ok("POST", "v1/tables/rename", {"source": ends[0], "destination": ends[1]})

    return rename


def listed(client: Client, size: int) -> Action:
    """Tables are listed in pages of one."""
    for n in range(size):
        client.create(f"t{n}")

    def list_all() -> None:
        token: str | None = ""
        while token is not None:
            page = client.ok("GET", tables("db"), query={"pageToken": token, "pageSize": "1"})
            token = page.get("next-page-token")

    return list_all


def properties(size: int) -> dict[str, str]:
    """Properties."""
    return {f"k{n}": "v" for n in range(size)}


def namespace_updated(client: Client, size: int) -> Action:
    """Properties of a namespace are set and removed."""
    client.namespace("p", properties=properties(2 * size))
    body = {"updates": {f"n{n}": "v" for n in range(size)}, "removals": list(properties(size))}
    return lambda: client.ok("POST", f"{path('p')}/properties", body)


def created(client: Client, **request: Any) -> Action:
    """A table is created."""
    return lambda: client.create("t", **request)


def repeated_key(client: Client, size: int) -> Action:
    """One key of a JSON object is repeated."""
    client.create("t")
    updates = ",".join(f'"k":"{n}"' for n in range(size))
    update = f'{{"action":"set-properties","updates":{{{updates}}}}}'
    body = f'{{"requirements":[],"updates":[{update}]}}'
    return lambda: client.ok("POST", table("t"), body)


def loaded(client: Client, size: int) -> Action:
    """A table is loaded with the snapshots of its many tags."""
    of_table(client, snapshots(size))()
    return lambda: client.load("t", snapshots="refs")


def reported(client: Client, size: int) -> Action:
    """One metrics report has many metrics."""
    client.create("t")
    metrics = {f"m{n}": {"unit": "count", "value": n} for n in range(size)}
    report = {
        "report-type": "scan-report",
        "table-name": "db.t",
        "snapshot-id": 1,
        "filter": {"type": "true"},
        "schema-id": 0,
        "projected-field-ids": [],
        "projected-field-names": [],
        "metrics": metrics,
    }
    return lambda: client.ok("POST", f"{table('t')}/metrics", report)


def refs_required(client: Client, size: int) -> Action:
    """A commit with `size` requirements. Each one says that a branch does not exist."""
    required = [{"type": "assert-ref-snapshot-id", "ref": f"b{n}", "snapshot-id": None} for n in range(size)]
    return of_table(client, [], requirements=required)


KINDS: dict[str, Prepare] = {
    "different schemas": lambda c, n: of_table(c, [add_schema(column(1), column(m + 3)) for m in range(n)]),
    "equal schemas": lambda c, n: of_table(c, [add_schema(column(1), column(9))] * n),
    "schemas added and removed": lambda c, n: of_table(
        c,
        [
            u
            for m in range(n)
            for u in (add_schema(column(m + 9)), {"action": "remove-schemas", "schema-ids": [1]})
        ],
    ),
    "a wide schema": lambda c, n: of_table(c, [{"action": "add-schema", "schema": wide(n)}]),
    "the current schema": toggled,
    "specs and schemas": specs_and_schemas,
    "specs": lambda c, n: of_table(c, [spec(m + 1) for m in range(n)], schema=wide(n)),
    "specs added and removed": lambda c, n: of_table(
        c,
        [
            u
            for m in range(n)
            for u in (spec(m + 1), {"action": "remove-partition-specs", "spec-ids": [n + 1]})
        ],
        before=[spec(m + 1, f"q{m}") for m in range(n)],
        schema=wide(n),
    ),
    "a spec of many fields": lambda c, n: of_table(
        c,
        [{"action": "add-spec", "spec": {"fields": [spec(m + 1)["spec"]["fields"][0] for m in range(n)]}}],
        schema=wide(n),
    ),
    "sort orders": lambda c, n: of_table(c, [order(m + 1) for m in range(n)], schema=wide(n)),
    "snapshots": lambda c, n: of_table(c, snapshots(n)),
    "snapshots of a branch": lambda c, n: of_table(
        c, [u for m in range(1, n + 1) for u in (snapshot(m), tag(m, "main", "branch"))]
    ),
    "tags of one snapshot": lambda c, n: of_table(
        c, [tag(1, f"t{m}") for m in range(n)], before=[snapshot(1)]
    ),
    "a tag moved": lambda c, n: of_table(c, pairs(n, tag(1, "x"), tag(2, "x")), before=snapshots(2)),
    "snapshots removed one by one": lambda c, n: of_table(
        c,
        [{"action": "remove-snapshots", "snapshot-ids": [m]} for m in range(1, n + 1)],
        before=snapshots(n),
    ),
    "a snapshot removed many times": lambda c, n: of_table(
        c, [{"action": "remove-snapshots", "snapshot-ids": [1] * n}], before=snapshots(2)
    ),
    "tags removed": lambda c, n: of_table(
        c,
        [{"action": "remove-snapshot-ref", "ref-name": f"t{m}"} for m in range(1, n + 1)],
        before=snapshots(n),
    ),
    "statistics": lambda c, n: of_table(c, [statistics(m) for m in range(n)]),
    "statistics of one snapshot": lambda c, n: of_table(c, [statistics(1)] * n),
    "partition statistics": lambda c, n: of_table(
        c, [statistics(m, "partition-statistics") for m in range(n)]
    ),
    "statistics removed": lambda c, n: of_table(
        c,
        [{"action": "remove-statistics", "snapshot-id": m} for m in range(n)],
        before=[statistics(m) for m in range(n)],
    ),
    "properties": lambda c, n: of_table(c, [{"action": "set-properties", "updates": properties(n)}]),
    "properties one by one": lambda c, n: of_table(
        c, [{"action": "set-properties", "updates": {f"k{m}": "v"}} for m in range(n)]
    ),
    "properties removed": lambda c, n: of_table(
        c,
        [{"action": "remove-properties", "removals": [f"k{m}"]} for m in range(n)],
        properties=properties(n),
    ),
    "encryption keys": lambda c, n: of_table(
        c, [key(m) for m in range(n)], properties={"format-version": "3"}
    ),
    "encryption keys removed": lambda c, n: of_table(
        c,
        [{"action": "remove-encryption-key", "key-id": f"k{m}"} for m in range(n)],
        before=[key(m) for m in range(n)],
        properties={"format-version": "3"},
    ),
    "locations": lambda c, n: of_table(
        c, [{"action": "set-location", "location": f"file:///tmp/growth/{m}"} for m in range(n)]
    ),
    "equal requirements": lambda c, n: of_table(
        c, [], requirements=[{"type": "assert-current-schema-id", "current-schema-id": 0}] * n
    ),
    "requirements of branches": refs_required,
    "columns merged": merged,
    "a new table of many columns": lambda c, n: created(c, schema=wide(n)),
    "a new table of default values": lambda c, n: created(
        c,
        schema=struct([column(m + 1, type="int", **{"initial-default": m}) for m in range(n)]),
        properties={"format-version": "3"},
    ),
    "a new table of identifier fields": lambda c, n: created(
        c,
        schema=struct(
            [{**column(m + 1), "required": True} for m in range(n)],
            **{"identifier-field-ids": list(range(1, n + 1))},
        ),
    ),
    "a new table of properties": lambda c, n: created(c, properties=properties(n)),
    "a new namespace": lambda c, n: lambda: c.namespace("p", properties=properties(n)),
    "properties of a namespace": namespace_updated,
    "tables of a transaction": transaction,
    "tables made by a transaction": tables_made,
    "levels of a namespace": nested_namespace,
    "segments of a location": lambda c, n: created(c, location="file:///tmp/growth" + "/a" * n),
    "versions of a view": lambda c, n: of_view(c, [version(m) for m in range(n)]),
    "current versions of a view": lambda c, n: of_view(
        c,
        [
            u
            for m in range(n)
            for u in (version(m), {"action": "set-current-view-version", "view-version-id": -1})
        ],
    ),
    "schemas of a view": lambda c, n: of_view(
        c, [*(add_schema(column(1, f"c{m}")) for m in range(n)), version(1)]
    ),
    "properties of a view": lambda c, n: of_view(
        c, [{"action": "set-properties", "updates": {f"k{m}": "v"}} for m in range(n)]
    ),
    "renames of a table": renamed,
    "pages of one table": listed,
    "a repeated key": repeated_key,
    "a load of many tags": loaded,
    "a metrics report": reported,
}
