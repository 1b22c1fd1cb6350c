"""What a change of a table, view or namespace changed, as fields of the summary in its log entry.

The fields are stored, not computed from the content before and after the change, because the log may be kept longer
than the content. An ordinary append stores only what the client says about it. The move of `main` from the parent of a
new snapshot to this snapshot follows from `snapshot-id`, so it has no field.

| field | value |
| --- | --- |
| `add-column <column>`, `drop-column <column>` | type of the column; the columns inside it have no field |
| `rename-column <old name>` | new name |
| `retype-column <column>` | `<old type> -> <new type>`; a type ends in `required` if the column is required |
| `reorder-columns` | names of the columns whose order changed, in the new order |
| `set <property>` | new value |
| `unset` | names of the removed properties, separated by spaces |
| `ref <branch or tag>` | `<old snapshot id> -> <new snapshot id>`; `none` if there is none |
| `rollback` | names of the branches and tags that moved to an older snapshot, separated by spaces |
| `partition-spec`, `sort-order` | the new fields, such as `day(ts), bucket[16](id)`; `none` without fields |
| `format-version`, `location` | new value |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from polaris_spark.catalog.metadata.overflow import MAIN_REF, PROPERTY_CODEC, REF_CODEC, SpilledValues
from polaris_spark.catalog.metadata.pieces import NumberedPieces
from polaris_spark.catalog.metadata.rows import Ref, Schema, Table
from polaris_spark.catalog.metadata.schemas import Column, SchemaIndex, schema_form
from polaris_spark.catalog.metadata.table_values import TableValues
from polaris_spark.catalog.metadata.texts import Json

MOST_FIELDS: Final = 100
"""Maximum number of fields about one change. If there are more, the field `more` has the number of the others."""
MOST_CHARACTERS: Final = 100
"""Maximum length of a value; of a list of names, ten times as much. A longer value is cut and ends in an ellipsis."""
_LISTS = frozenset({"unset", "rollback", "reorder-columns"})

CLIENT_FIELDS: Final = 16
"""Maximum number of the client's own fields of a snapshot's summary that the log keeps."""
_CLIENT_NAME: Final = 100
"""Maximum length of the name of a client's field; fields with longer names are left out."""

_DETAILS = ("add-column ", "drop-column ", "rename-column ", "retype-column ", "set ", "ref ")
_DETAIL_NAMES = frozenset(
    {
        "unset",
        "rollback",
        "reorder-columns",
        "partition-spec",
        "sort-order",
        "format-version",
        "location",
        "more",
    }
)

_COMPUTED = ("added-", "deleted-", "removed-", "total-", "manifests-", "partitions.", "polaris.")
_LEFT_OUT = frozenset(
    {
        "operation",
        "iceberg-version",
        "engine-version",
        "changed-partition-count",
        "partition-summaries-included",
        "entries-processed",
        "refresh-state",
    }
)
_OWN = frozenset(
    {
        "action",
        "updates",
        "snapshot-id",
        "rebased-from",
        "purge",
        *_DETAIL_NAMES,
    }
)
"""Fields that only the catalog writes. A client's field of such a name is left out, so that it cannot forge them."""

_REFS = frozenset({"set-snapshot-ref", "remove-snapshot-ref"})
_PROPERTIES = frozenset({"set-properties", "remove-properties"})


def is_detail(name: str) -> bool:
    """Whether a field of a summary says what changed: whether it is one of the fields listed at the top of this
    module."""
    return name.startswith(_DETAILS) or name in _DETAIL_NAMES


def client_fields(summary: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that a client's engine or job wrote into the summary of a snapshot, such as `spark.app.id`,
    `engine-name` and `job`. Counts, totals and versions are left out, and so is `app-id` if it repeats `spark.app.id`.
    """
    found: dict[str, str] = {}
    for name, text in summary.items():
        if name in _LEFT_OUT or name in _OWN or name.startswith(_COMPUTED):
            continue
        if " " in name or name.startswith("commit.") or len(name) > _CLIENT_NAME:
            continue
        if name == "app-id" and text == summary.get("spark.app.id"):
            continue
        found[name] = _cut(text)
        if len(found) == CLIENT_FIELDS:
            break
    return found


def property_details(
    before: Mapping[str, str], after: Mapping[str, str], names: Iterable[str]
) -> dict[str, str]:
    """Return the fields that describe the changes of properties.

    Args:
        names: names of the properties that may have changed.
    """
    found: dict[str, str] = {}
    removed = []
    distinct = list(dict.fromkeys(names))
    for name in distinct[:MOST_FIELDS]:
        old, new = before.get(name), after.get(name)
        if new is None and old is not None:
            removed.append(name)
        elif new is not None and new != old:
            found[f"set {name}"] = new
    if removed:
        found["unset"] = " ".join(removed)
    return _with_more(found, len(distinct) - MOST_FIELDS)


def column_details(
    before: SchemaIndex | None, after: SchemaIndex, *, by_name: bool = False
) -> dict[str, str]:
    """Return the fields that describe the changes of columns.

    Args:
        before: the columns before the change; None if the table or view is new.
        by_name: whether to match columns by name instead of by id, as for views: their columns get new ids in each
            version.
    """
    if by_name:

        def same(column: Column) -> object:
            return column.name

    else:

        def same(column: Column) -> object:
            return column.id

    old = {} if before is None else {same(column): column for column in before.by_id.values()}
    new = {same(column): column for column in after.by_id.values()}
    found: dict[str, str] = {}
    for key, column in new.items():
        was = old.get(key)
        if was is None:
            if column.parent is None or same(after.by_id[column.parent]) in old:
                found[f"add-column {column.name}"] = _type(column)
            continue
        if was.label != column.label:
            found[f"rename-column {was.name}"] = column.name
        if _type(was) != _type(column):
            found[f"retype-column {column.name}"] = f"{_type(was)} -> {_type(column)}"
    for key, column in old.items():
        if key in new or before is None:
            continue
        if column.parent is None or same(before.by_id[column.parent]) in new:
            found[f"drop-column {column.name}"] = _type(column)
    moved = _reordered(old, new)
    return found | ({"reorder-columns": " ".join(moved)} if moved else {})


def _reordered(old: Mapping[object, Column], new: Mapping[object, Column]) -> list[str]:
    """For each struct in which the order of the kept columns changed, return the names of these columns in the new
    order."""
    before: dict[int | None, list[object]] = {}
    after: dict[int | None, list[object]] = {}
    for key in old:
        if key in new:
            before.setdefault(new[key].parent, []).append(key)
    for key, column in new.items():
        if key in old:
            after.setdefault(column.parent, []).append(key)
    return [new[key].name for parent, keys in after.items() if keys != before[parent] for key in keys]


def _type(column: Column) -> str:
    kind = column.kind if column.kind in ("struct", "list", "map") else column.type
    return f"{kind} required" if column.required else kind


def table_details(draft: TableValues) -> dict[str, str]:
    """Return the fields about the changes of a table. Call this before the draft is frozen."""
    base = draft.base
    if base is not None and not draft.changes_content:
        found = _table_properties(draft, base)
        if draft.location != base.location:
            found["location"] = draft.location
        return bounded(found) if found else found
    actions = {action for action, _ in draft.changes}
    found = {}
    if base is None or draft.current_schema_id != base.current_schema_id:
        after = draft.schema_index(draft.current_schema_id)
        if after is not None:
            found |= column_details(None if base is None else _schema_before(draft, base), after)
    if base is None:
        found |= property_details({}, draft.properties, draft.properties)
    elif actions & _PROPERTIES:
        found |= _table_properties(draft, base)
    more = int(found.pop("more", 0))
    if actions & _REFS:
        found |= _ref_details(draft)
    found = _with_more(found, more)
    if base is None or draft.default_spec_id != base.default_spec_id:
        spec = draft.specs.get(draft.default_spec_id)
        found["partition-spec"] = fields_text(draft, spec)
    if base is None or draft.default_sort_order_id != base.default_sort_order_id:
        order = draft.sort_orders.get(draft.default_sort_order_id)
        found["sort-order"] = fields_text(draft, order, sort_direction)
    if base is None:
        found = {name: text for name, text in found.items() if text != "none"}
    if base is not None and draft.format_version != base.format_version:
        found["format-version"] = str(draft.format_version)
    if base is not None and draft.location != base.location:
        found["location"] = draft.location
    return bounded(found)


def _schema_before(draft: TableValues, base: Table) -> SchemaIndex | None:
    found = draft.schema_index(base.current_schema_id)
    if found is None:  # the change also removed the schema
        pieces = NumberedPieces(Schema, base.schemas, draft.reader, schema_form)
        schema = pieces.get(base.current_schema_id)
        found = None if schema is None else SchemaIndex(schema)
    return found


def _table_properties(draft: TableValues, base: Table) -> dict[str, str]:
    names = [name for action, detail in draft.changes if action in _PROPERTIES for name in detail or ()]
    before: Mapping[str, str] = base.properties
    if base.more_properties is not None:
        before = SpilledValues(before, base.more_properties, draft.reader, PROPERTY_CODEC)
    return property_details(before, draft.properties, names)


def _ref_details(draft: TableValues) -> dict[str, str]:
    base = draft.base
    before: Mapping[str, Ref] = {}
    if base is not None:
        before = {ref.name: ref for ref in base.refs}
        if base.more_refs is not None:
            before = SpilledValues(before, base.more_refs, draft.reader, REF_CODEC)
    names = dict.fromkeys(
        detail if action == "remove-snapshot-ref" else detail[0]
        for action, detail in draft.changes
        if action in _REFS
    )
    found: dict[str, str] = {}
    rolled_back = []
    for name in list(names)[:MOST_FIELDS]:
        old, new = before.get(name), draft.refs.get(name)
        old_id, new_id = old.snapshot_id if old else None, new.snapshot_id if new else None
        if old_id == new_id:
            continue
        if name == MAIN_REF and new_id in draft.added_parents and draft.added_parents[new_id] == old_id:
            continue
        found[f"ref {name}"] = moved_ref(old_id, new_id)
        if old is not None and new_id is not None:
            place = draft.snapshots.place(new_id)
            if place is not None and place.order < old.order:
                rolled_back.append(name)
    if rolled_back:
        found["rollback"] = " ".join(rolled_back)
    return _with_more(found, len(names) - MOST_FIELDS)


def moved_ref(before: int | None, after: int | None) -> str:
    """Return the value of the field `ref <branch or tag>`. `before` and `after` are the old and new snapshot id; None
    if the branch or tag did not exist."""
    old, new = ("none" if id is None else str(id) for id in (before, after))
    return f"{old} -> {new}"


def sort_direction(field: Json) -> str:
    """Return the direction of a field of a sort order, as text to append to the name of the field."""
    return f" {field.get('direction', '')}"


def fields_text(draft: TableValues, piece: Json | None, ending: Callable[[Json], str] = lambda _: "") -> str:
    """Return the fields of a partition spec or sort order as text, such as `day(ts), bucket[16](id)`; `none` if it has
    none.

    Args:
        draft: the table, whose current schema has the names of the columns.
        ending: returns the text after a field.
    """
    fields: list[Any] = [] if piece is None else piece.get("fields") or []
    columns = draft.schema_index(draft.current_schema_id)
    texts = []
    for field in fields:
        ids = field.get("source-ids") or [field.get("source-id")]
        known = [columns.by_id.get(id) if columns else None for id in ids]
        names = ", ".join(
            column.name if column else f"column {id}" for column, id in zip(known, ids, strict=True)
        )
        transform = field.get("transform", "")
        texts.append((names if transform == "identity" else f"{transform}({names})") + ending(field))
    return ", ".join(texts) or "none"


def bounded(found: dict[str, str]) -> dict[str, str]:
    """Return at most `MOST_FIELDS` of the fields, with long values cut off. The field `more` has the number of fields
    that were left out."""
    kept = {
        name: text if len(text) <= MOST_CHARACTERS else _cut(text, 10 if name in _LISTS else 1)
        for name, text in found.items()
    }
    more = int(kept.pop("more", 0))
    for name in list(kept)[MOST_FIELDS:]:
        del kept[name]
        more += 1
    return _with_more(kept, more) if more else kept


def _with_more(found: dict[str, str], more: int) -> dict[str, str]:
    if more > 0:
        found["more"] = str(int(found.get("more", 0)) + more)
    return found


def _cut(text: str, times: int = 1) -> str:
    longest = times * MOST_CHARACTERS
    return text if len(text) <= longest else text[: longest - 1] + "…"
