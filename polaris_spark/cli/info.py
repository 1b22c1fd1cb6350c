"""`polaris-spark info`: show the contents of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from polaris_spark.cli.options import AsJSON, Password, Store
from polaris_spark.cli.output import grid, hexadecimal, plain, print_json, screen, size
from polaris_spark.cli.progress import reading
from polaris_spark.clock import iso_text
from polaris_spark.names import MAIN

if TYPE_CHECKING:
    from polaris_spark.cli.stores import OpenRealm, OpenStore
    from polaris_spark.commits.state import CommitReader
    from polaris_spark.system.leases import NodeRecord

Json = dict[str, Any]


class Size(NamedTuple):
    """Number of object rows of a realm, and the size of their values in bytes."""

    rows: int = 0
    bytes: int = 0


def info(
    store: Store,
    password: Password = None,
    sizes: Annotated[bool, typer.Option(help="Count rows and bytes, which reads the whole store.")] = True,
    as_json: AsJSON = False,
) -> None:
    """Show a store's format, realms, catalogs, references, sizes and node leases."""
    from polaris_spark.cli.stores import open_store

    with open_store(store, password) as opened:
        measured = _sizes(opened) if sizes else None
        facts = _facts(opened, measured)
    if as_json:
        print_json(facts)
    else:
        _show(facts, screen())


def _facts(store: OpenStore, sizes: dict[str, Size] | None) -> Json:
    from polaris_spark.system.leases import node_records

    return {
        "store": str(store.uri),
        "format": store.record.format,
        "created": iso_text(store.record.created_ms),
        "realms": [_realm(realm, sizes) for realm in store.realms()],
        "node-leases": [
            _node(number, record) for number, record in sorted(node_records(store.backend).items())
        ],
    }


def _realm(realm: OpenRealm, sizes: dict[str, Size] | None) -> Json:
    from polaris_spark.catalog.catalogs.references import CATALOGS
    from polaris_spark.system.realms import RealmState
    from polaris_spark.system.registry import ROOT

    record = realm.record
    facts: Json = {
        "name": record.name,
        "state": record.state.value,
        "instance": record.instance,
        "created": iso_text(record.created_ms),
    }
    if sizes is not None:
        facts |= {
            "objects": sizes.get(record.instance, Size()).rows,
            "bytes": sizes.get(record.instance, Size()).bytes,
        }
    if record.state in (RealmState.ACTIVE, RealmState.INACTIVE):
        listed = realm.references()
        facts["references"] = [
            _head(ROOT, "live", realm.head(ROOT)),
            *(_head(r.name, r.registration.state, realm.head_of(r)) for r in listed),
        ]
        known = any(r.name == CATALOGS for r in listed)
        facts["catalogs"] = [_catalog(realm, row.name) for row in realm.catalogs()] if known else []
    return facts


def _head(name: str, state: str, reader: CommitReader) -> Json:
    head = reader.head
    return {
        "name": name,
        "state": state,
        "commit": head.number,
        "id": hexadecimal(head.commit),
        "time": iso_text(head.time),
        "history-floor": head.floor_number,
    }


def _catalog(realm: OpenRealm, name: str) -> Json:
    from polaris_spark.catalog.branches.change_log import kind_of
    from polaris_spark.catalog.catalogs.references import heads_prefix, tags_prefix
    from polaris_spark.catalog.rows import NAMES
    from polaris_spark.index.keys import decode_key

    row = realm.catalog(name)
    prefix = heads_prefix(row)
    names = [one.name for one in realm.references()]
    branches = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    tags = [name.removeprefix(tags_prefix(row)) for name in names if name.startswith(tags_prefix(row))]
    counts = dict.fromkeys(("namespace", "table", "view"), 0)
    if MAIN in branches:
        for key, _ in realm.catalog_head(row, MAIN).index(NAMES).range():
            counts[kind_of(decode_key(key).kind)] += 1
    return {
        "name": row.name,
        "id": hexadecimal(row.entity_id),
        "owner": row.owner,
        "created": iso_text(row.created),
        "branches": branches,
        "tags": tags,
        "namespaces": counts["namespace"],
        "tables": counts["table"],
        "views": counts["view"],
        "properties": row.properties,
    }


def _node(number: int, record: NodeRecord) -> Json:
    return {
        "node": number,
        "holder": record.holder,
        "from": iso_text(record.start_ms),
        "until": iso_text(record.end_ms),
        "released": record.released,
    }


def _sizes(store: OpenStore) -> dict[str, Size]:
    """Return the number and the size of the object rows of each realm, by the realm's instance id."""
    found: dict[str, Size] = {}
    with reading() as on_read:
        for split in store.backend.splits("objects", None, 1):
            for batch in store.backend.scan(split):
                for realm, count, total in _by_realm(batch):
                    before = found.get(realm, Size())
                    found[realm] = Size(before.rows + count, before.bytes + total)
                on_read(batch.num_rows)
    return found


def _by_realm(batch: Any) -> Iterator[tuple[str, int, int]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = pa.table({"realm": batch.column("realm"), "size": pc.binary_length(batch.column("value"))})
    for row in sizes.group_by("realm").aggregate([("size", "count"), ("size", "sum")]).to_pylist():
        yield row["realm"], row["size_count"], row["size_sum"]


def _show(facts: Json, console: Console) -> None:
    console.print(f"store {facts['store']}, format {facts['format']}, created {facts['created']}")
    for realm in facts["realms"]:
        console.print()
        total = f", {realm['objects']:,} objects of {size(realm['bytes'])}" if "objects" in realm else ""
        console.print(f"realm {plain(realm['name'])}: {realm['state']}, instance {realm['instance']}{total}")
        if "catalogs" in realm:
            console.print(_catalogs_table(realm["catalogs"]))
            console.print()
            console.print(_references_table(realm["references"]))
    console.print()
    console.print(_nodes_table(facts["node-leases"]))


def _catalogs_table(rows: list[Json]) -> Any:
    table = grid(
        None, "catalog", "id", "owner", "namespaces", "tables", "views", "branches", "warehouse",
        right=("namespaces", "tables", "views"),
    )  # fmt: skip  # keep the header on one line
    for row in rows:
        counts = (f"{row[name]:,}" for name in ("namespaces", "tables", "views"))
        names = ", ".join(map(plain, row["branches"]))
        warehouse = plain(row["properties"].get("warehouse", ""))
        table.add_row(plain(row["name"]), row["id"], plain(row["owner"]), *counts, names, warehouse)
    return table


def _references_table(rows: list[Json]) -> Any:
    table = grid(
        None, "reference", "state", "commit", "id", "time", "history from", right=("commit", "history from")
    )
    for row in rows:
        floor = f"{row['history-floor']:,}"
        table.add_row(plain(row["name"]), row["state"], f"{row['commit']:,}", row["id"], row["time"], floor)
    return table


def _nodes_table(rows: list[Json]) -> Any:
    table = grid(None, "node", "held by", "from", "until", right=("node",))
    for row in rows:
        until = f"{row['until']} (released)" if row["released"] else row["until"]
        table.add_row(str(row["node"]), plain(row["holder"]), row["from"], until)
    return table
