"""Upper bounds on the size of requests. A request that exceeds a bound is refused before any work on it begins.

The bounds are higher than practical use of Iceberg needs. Within the bounds, the cost of a request is at most
proportional to its size. The bounds are checked on the decoded request, so they apply equally to requests over HTTP,
from Spark's JVM and from Python code in the same process. A registered metadata file is allowed to contain more
schemas, specs and so on than the bounds allow, but no more can then be added to the table. The bounds of a single
schema also apply to registered files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from polaris_spark.errors import BadRequestError

BOUNDS: Final[Mapping[str, int]] = {
    "updates in a request": 100_000,
    "requirements in a request": 100_000,
    "tables in a transaction": 10_000,
    "requests in a transaction": 10_000,
    "schemas of a table or view": 10_000,
    "columns in a schema": 100_000,
    "columns in a request": 1_000_000,
    "characters in the full names of a schema's columns": 10_000_000,
    "levels of nested types in a schema": 100,
    "levels of nested JSON in a request": 400,
    "partition specs of a table": 1_000,
    "sort orders of a table": 1_000,
    "fields in a partition spec or sort order": 1_000,
    "snapshots added to a table in a request": 10_000,
    "branches and tags of a table": 10_000,
    "bytes in the name of a branch or tag": 1_024,
    "encryption keys of a table": 10_000,
    "ids to remove in a request": 1_000_000,
    "levels of a namespace": 100,
    "characters in a location": 4_096,
    "properties": 250_000,
    "bytes of properties": 16 * 2**20,
    "versions of a view": 10_000,
    "representations in a view version": 100,
}
"""Maximum of each quantity that is counted; the key describes the quantity. Nested columns count as columns."""

_ADDED: Final = {
    "add-schema": "schemas of a table or view",
    "add-spec": "partition specs of a table",
    "add-sort-order": "sort orders of a table",
    "add-snapshot": "snapshots added to a table in a request",
    "set-snapshot-ref": "branches and tags of a table",
    "add-encryption-key": "encryption keys of a table",
    "add-view-version": "versions of a view",
    "set-statistics": "updates in a request",
    "set-partition-statistics": "updates in a request",
}
"""Actions of updates that add JSON to the metadata, each with a key in `BOUNDS`. That bound limits the number of
updates with this action for one table or view in a request. The nesting of the added JSON is bounded, too, because it
is stored.
"""

_IDS: Final = {
    "remove-schemas": "schema-ids",
    "remove-partition-specs": "spec-ids",
    "remove-snapshots": "snapshot-ids",
}
_FIELDS: Final = {"add-spec": "spec", "add-sort-order": "sort-order"}
_PROPERTIES: Final = {"set-properties": ("updates", "updated"), "remove-properties": ("removals", "removed")}
_encode = msgspec.json.Encoder().encode

_FEW: Final = 1_000
"""Maximum number of updates, requirements and tables in a request that is not checked, because their bounds are higher.
The same applies to the properties in an update. Their size in bytes is still checked, when they are merged into the
existing properties."""

_NESTED: Final = ("element", "key", "value")


def require_within(what: str, value: int) -> None:
    """Refuse a request in which a quantity exceeds its bound.

    Args:
        what: the quantity, a key of `BOUNDS`.
        value: the value of the quantity in the request.
    Raises:
        BadRequestError: the value exceeds the bound; the message names the value and the bound.
    """
    if value > BOUNDS[what]:
        raise BadRequestError(f"too many {what}: {value}, the maximum is {BOUNDS[what]}")


def require_commits_within(commits: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> int:
    """Refuse a commit to one or more tables or views whose requirements or updates exceed a bound.

    Malformed parts are not counted here. The code that reads these parts later refuses them with a precise message.

    Args:
        commits: requirements and updates of each table or view.
    Returns:
        the size of the request: the sum of its numbers of requirements, updates, columns, partition and sort fields,
            properties, view representations, and ids to remove.
    Raises:
        BadRequestError: a bound is exceeded; the message names the bound and the value.
    """
    requirements = updates = columns = ids = others = 0
    for required, updated in commits:
        requirements += len(required)
        updates += len(updated)
    if len(commits) + requirements + updates > _FEW:
        require_within("tables in a transaction", len(commits))
        require_within("requirements in a request", requirements)
        require_within("updates in a request", updates)
    for _, updated in commits:
        counts: dict[str, int] = {}
        for update in updated:
            action = update.get("action") if isinstance(update, dict) else None
            action = action.lower() if isinstance(action, str) else ""
            names = _PROPERTIES.get(action)
            if names is not None:
                newer, older = names
                given = update.get(newer if newer in update else older)
                if isinstance(given, (dict, list)):
                    others += len(given)
                    if len(given) > _FEW:
                        require_properties_within(given)
            elif action in _ADDED:
                counts[action] = counts.get(action, 0) + 1
                require_within(_ADDED[action], counts[action])
                _require_nesting_within([update])
                if action == "add-schema":
                    columns += require_schema_within(update.get("schema"))
                    require_within("columns in a request", columns)
                elif action in _FIELDS:
                    others += _require_fields_within(update.get(_FIELDS[action]))
                elif action == "add-view-version":
                    others += _require_representations_within(update.get("view-version"))
            elif action in _IDS:
                ids += _length(update.get(_IDS[action]))
                require_within("ids to remove in a request", ids)
    return requirements + updates + columns + ids + others


def require_schema_within(schema: object) -> int:
    """Refuse a schema that exceeds a bound. This uses no recursion, so that deep nesting cannot exhaust the stack.

    Returns:
        the number of columns in the schema, including nested ones.
    Raises:
        BadRequestError: a bound is exceeded; the message names the bound and the value.
    """
    columns = characters = 0
    waiting: list[tuple[Any, int, int]] = [(schema, 0, 0)]
    while waiting:
        type, depth, length = waiting.pop()
        if not isinstance(type, dict):
            continue
        require_within("levels of nested types in a schema", depth)
        fields = type.get("fields")
        if isinstance(fields, list):
            columns += len(fields)
            require_within("columns in a schema", columns)
            for field in fields:
                if isinstance(field, dict):
                    name = field.get("name")
                    long = length + (len(name) + 1 if isinstance(name, str) else 1)
                    characters += long
                    waiting.append((field.get("type"), depth + 1, long))
        for name in _NESTED:
            if name in type:
                columns += 1
                long = length + len(name) + 1
                characters += long
                waiting.append((type[name], depth + 1, long))
        require_within("characters in the full names of a schema's columns", characters)
    require_within("columns in a schema", columns)
    return columns


def require_creation_within(request: Mapping[str, Any]) -> int:
    """Refuse a request to create a table, view or namespace if it exceeds a bound.

    Args:
        request: the decoded CreateTableRequest, CreateViewRequest or CreateNamespaceRequest of the REST specification.
    Returns:
        the size of the request: the sum of its numbers of columns, partition and sort fields, view representations, and
            properties.
    Raises:
        BadRequestError: a bound is exceeded; the message names the bound and the value.
    """
    _require_nesting_within([request])
    size = require_schema_within(request.get("schema"))
    for name in ("partition-spec", "write-order"):
        size += _require_fields_within(request.get(name))
    size += _require_representations_within(request.get("view-version"))
    properties = request.get("properties")
    return size + (require_properties_within(properties) if isinstance(properties, dict) else 0)


def require_properties_within(properties: Mapping[str, Any] | Collection[Any]) -> int:
    """Refuse properties, or names of properties to remove, whose number or size exceeds a bound.

    Returns:
        the number of properties or names.
    Raises:
        BadRequestError: a bound is exceeded; the message names the bound and the value.
    """
    require_within("properties", len(properties))
    if encoded_bytes(properties) > BOUNDS["bytes of properties"]:
        require_within("bytes of properties", bytes_of(properties))
    return len(properties)


def require_properties_growth(before: Mapping[str, str], after: Mapping[str, str]) -> int:
    """Refuse a change that makes the number or size of properties grow beyond a bound.

    Properties that exceed a bound before the change are allowed to shrink or to keep their size.

    Args:
        before: the properties before the change.
        after: the properties after the change.
    Returns:
        the size of `after` as JSON, in bytes (see `encoded_bytes`).
    Raises:
        BadRequestError: a bound is exceeded; the message names the bound and the value.
    """
    if len(after) > len(before):
        require_within("properties", len(after))
    encoded = encoded_bytes(after)
    if encoded > BOUNDS["bytes of properties"]:
        size = bytes_of(after)
        if size > bytes_of(before):
            require_within("bytes of properties", size)
    return encoded


def require_totals_growth(before: tuple[int, int], after: tuple[int, int]) -> None:
    """Refuse a change that makes the number or size of properties grow beyond a bound.

    This is `require_properties_growth` for a caller that has only the totals of the properties.

    Args:
        before: number of properties, and their size in bytes, before the change.
        after: number of properties, and their size in bytes, after the change.
    Raises:
        BadRequestError: a bound is exceeded; the message names the bound and the value.
    """
    for what, old, new in zip(("properties", "bytes of properties"), before, after, strict=True):
        if new > old:
            require_within(what, new)


def bytes_of(properties: Mapping[str, Any] | Collection[Any]) -> int:
    """Return the total size of the names and values of properties in UTF-8 bytes.

    Args:
        properties: the properties; or only names, whose total size is then returned.
    """
    texts = [*properties, *(properties.values() if isinstance(properties, Mapping) else ())]
    return sum(
        len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        for text in texts
        if isinstance(text, str)
    )


def encoded_bytes(properties: Mapping[str, Any] | Collection[Any]) -> int:
    """Return the size of the properties as JSON, in bytes: an upper bound of `bytes_of` that is faster to compute."""
    try:
        return len(_encode(properties))
    except UnicodeEncodeError:  # the code that reads the properties refuses them later
        return bytes_of(properties)


def _require_fields_within(value: object) -> int:
    fields = _length(value.get("fields")) if isinstance(value, dict) else 0
    require_within("fields in a partition spec or sort order", fields)
    return fields


def _require_representations_within(version: object) -> int:
    representations = _length(version.get("representations")) if isinstance(version, dict) else 0
    require_within("representations in a view version", representations)
    return representations


def _require_nesting_within(values: list[Any]) -> None:
    try:
        text = _encode(values)
    except (ArithmeticError, RecursionError, TypeError, ValueError):  # the code that writes them raises
        text = b""
    if text and text.count(b"{") + text.count(b"[") <= BOUNDS["levels of nested JSON in a request"]:
        return  # fast path, nearly always taken
    depth = 0
    while values:
        depth += 1
        require_within("levels of nested JSON in a request", depth)
        values = [
            item
            for value in values
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, (dict, list))
        ]


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0
