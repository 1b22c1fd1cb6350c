"""The statements of a store, prepared when they are first used.

Only `insert`, `swap` and `delete` write to `references`, each a lightweight transaction: a plain write beside them
would carry a client's clock as its timestamp, and win or lose against a Paxos ballot at random. Each names the version
that it replaces. `UPDATE ... IF version = null` would create a missing row; an expected version is never null, and
`value != null`, true for every row that is there, keeps an absent one absent. It also has a refused transaction answer
with the row that is there, read in the same round.
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
"""Title to text. The title of a statement that scans may be followed by those of `FILTERS`, in their order."""

FILTERS: Final = {"ids": " AND id > ? AND id <= ?", "realms": " AND realm IN ?"}


def text(title: str, keyspace: str) -> str:
    """The statement of a title, or of `title/filter`."""
    name, *filters = title.split("/")
    filtered = "".join(FILTERS[each] for each in filters)
    return TEXTS[name].format(keyspace=f'"{keyspace}"') + filtered + (" ALLOW FILTERING" if filters else "")
