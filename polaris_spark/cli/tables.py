"""`polaris-spark tables`: show namespaces as a tree, with the tables and views in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text
from rich.tree import Tree

from polaris_spark.cli.options import AsJSON, Password, Realm, Store
from polaris_spark.cli.output import hexadecimal, plain, print_json, screen
from polaris_spark.clock import iso_text
from polaris_spark.names import MAIN, sql_name

if TYPE_CHECKING:
    from polaris_spark.commits.state import CommitReader
    from polaris_spark.index import IndexRoot
    from polaris_spark.index.keys import DecodedKey

Json = dict[str, Any]
_BATCH = 500


def tables(
    store: Store,
    realm: Realm = "default",
    catalog: Annotated[
        str | None, typer.Option(help="Catalog to show; required if there are several.")
    ] = None,
    branch: Annotated[str, typer.Option(help="Branch of the catalog.")] = MAIN,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """Show the namespaces, tables and views of a catalog as a tree."""
    from polaris_spark.cli.stores import open_store

    with open_store(store, password) as opened:
        place = opened.realm(realm)
        row = place.catalog(catalog)
        entities = read_entities(place.catalog_head(row, branch))
    if as_json:
        print_json([{**entity, "name": sql_name(tuple(entity["name"]))} for entity in entities])
    else:
        screen().print(as_tree(f"{plain(row.name)} ({branch})", entities))


def read_entities(head: CommitReader) -> list[Json]:
    """Return the namespaces, tables and views in a commit of a catalog as JSON values, parents before their
    children."""
    from polaris_spark.catalog.rows import NAMES
    from polaris_spark.index.keys import decode_key

    found: list[Json] = []
    batch: list[tuple[DecodedKey, int]] = []
    for key, entry in head.index(NAMES).range():
        batch.append((decode_key(key), entry.pointer))
        if len(batch) == _BATCH:
            found += _described(head, batch)
            batch = []
    return found + _described(head, batch)


def _described(head: CommitReader, batch: list[tuple[DecodedKey, int]]) -> list[Json]:
    objects = head.store.read([id for _, id in batch])
    return [_entity(head, key, objects[id].value) for key, id in batch]


def _entity(head: CommitReader, key: DecodedKey, value: object) -> Json:
    from polaris_spark.catalog.metadata.rows import MATERIALIZED, Table, View
    from polaris_spark.catalog.rows import NAMESPACE, TABLE, Unloaded

    facts: Json = {"kind": "namespace" if key.kind == NAMESPACE else "view", "name": [*key.path, key.name]}
    if key.kind == TABLE:
        facts["kind"] = "table"
    if isinstance(value, Table):
        return facts | {
            "id": hexadecimal(value.entity_id),
            "format-version": value.format_version,
            "snapshots": _count(head, value.snapshots),
            "last-updated": iso_text(value.last_updated_ms),
            "location": value.location,
        }
    if isinstance(value, View):
        updated = (
            msgspec.json.decode(value.version_log.tail[-1])["timestamp-ms"]
            if value.version_log.tail
            else None
        )
        if MATERIALIZED in value.properties:
            facts["kind"] = "materialized view"
        return facts | {
            "id": hexadecimal(value.entity_id),
            "versions": len(value.versions),
            "last-updated": None if updated is None else iso_text(updated),
            "location": value.location,
        }
    if isinstance(value, Unloaded):
        return facts | {"id": hexadecimal(value.entity_id), "imported-from": value.metadata_location}
    return facts


def _count(head: CommitReader, root: IndexRoot) -> int:
    from polaris_spark.commits.state import StoredObjects
    from polaris_spark.index import Index

    if not root.shard:
        return sum(value is not None for value in root.values)
    return sum(1 for _ in Index(root, StoredObjects(head.store).read_shards).range())


def as_tree(title: str, entities: list[Json]) -> Tree:
    """Return a tree of the entities that `read_entities` returned."""
    tree = Tree(Text(title, style="bold"), guide_style="dim")
    places: dict[tuple[str, ...], Tree] = {(): tree}
    for entity in sorted(entities, key=_place):
        *path, name = entity["name"]
        parent = places.get(tuple(path), tree)
        node = parent.add(_label(entity, name))
        if entity["kind"] in ("namespace", "materialized view"):  # the storage table is shown below its view
            places[tuple(entity["name"])] = node
    return tree


def _place(entity: Json) -> tuple[int, bool, list[str]]:
    """Return a sort key. It orders parents before their children and, in a namespace, tables and views before
    namespaces."""
    return len(entity["name"]), entity["kind"] == "namespace", entity["name"]


def _label(entity: Json, name: str) -> Text:
    label = Text(plain(name), style="bold blue" if entity["kind"] == "namespace" else "")
    if "snapshots" in entity:
        count = entity["snapshots"]
        facts = f"v{entity['format-version']}, {count} snapshot{'' if count == 1 else 's'}"
    elif "versions" in entity:
        count = entity["versions"]
        facts = f"{entity['kind']}, {count} version{'' if count == 1 else 's'}"
    elif "imported-from" in entity:
        return label.append(f"  {'view, ' if entity['kind'] == 'view' else ''}not loaded yet", style="dim")
    else:
        return label
    when = f", {entity['last-updated'].replace('T', ' ')}" if entity["last-updated"] else ""
    return label.append(f"  {facts}{when}", style="dim")
