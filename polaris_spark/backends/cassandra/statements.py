"""The CQL statements of a store, prepared at first use.

Only `insert`, `swap` and `delete` write to `references`, and each is a lightweight transaction. A plain write would
carry a client's clock as its timestamp, and win or lose against a Paxos ballot at random. `swap` and `delete` state the
version that they replace. `UPDATE ... IF version = null` would create a missing row, so an expected version is never
null. The second condition, `value != null`, is true for every existing row, and keeps a missing row from being created.
Because the conditions name both columns, a refused transaction returns the existing row, which it has read in the same
round.
"""

from __future__ import annotations

from typing import Final

TEXTS: Final = {
    "read": "SELECT version, value FROM {keyspace}.references WHERE realm = ? AND name = ?",
    "insert": "INSERT INTO {keyspace}.references (realm, name, version, value) VALUES (?, ?, ?, ?) IF NOT EXISTS",
    "swap": "UPDATE {keyspace}.references SET version = ?, value = ? WHERE realm = ? AND name = ?"
    " IF version = ? AND value != null",
    "delete": "DELETE FROM {keyspace}.references WHERE realm = ? AND name = ? IF version = ? AND value != null",
    "get": "SELECT id, part, value FROM {keyspace}.objects WHERE realm = ? AND bucket = ? AND (id, part) IN ?",
    "put": "INSERT INTO {keyspace}.objects (realm, bucket, id, part, value) VALUES (?, ?, ?, ?, ?)",
    "remove": "DELETE FROM {keyspace}.objects WHERE realm = ? AND bucket = ? AND (id, part) IN ?",
    "drop": "DELETE FROM {keyspace}.objects WHERE realm = ? AND bucket = ?",
    "objects": "SELECT realm, id, part, value FROM {keyspace}.objects"
    " WHERE token(realm, bucket) > ? AND token(realm, bucket) <= ?",
    "partitions": "SELECT DISTINCT realm, bucket FROM {keyspace}.objects"
    " WHERE token(realm, bucket) > ? AND token(realm, bucket) <= ?",
    "buckets": "SELECT realm, bucket FROM {keyspace}.objects"
    " WHERE token(realm, bucket) > ? AND token(realm, bucket) <= ?",
    "now": "SELECT toUnixTimestamp(now()) FROM system.local",
    "references": "SELECT realm, name, version, value FROM {keyspace}.references"
    " WHERE token(realm, name) > ? AND token(realm, name) <= ?",
}
"""CQL text of each statement, by title. For statements that scan, `text` can append filters."""

FILTERS: Final = {"ids": " AND id > ? AND id <= ?", "realms": " AND realm IN ?"}
"""CQL conditions that can be appended to statements that scan, by filter name. If both are used, `ids` comes first."""


def text(title: str, keyspace: str) -> str:
    """Return the CQL text of a statement. `title` is a key of `TEXTS`, optionally followed by keys of `FILTERS`, with
    slashes between them: `objects`, `objects/ids`, `objects/ids/realms`."""
    name, *filters = title.split("/")
    filtered = "".join(FILTERS[each] for each in filters)
    return TEXTS[name].format(keyspace=f'"{keyspace}"') + filtered + (" ALLOW FILTERING" if filters else "")
