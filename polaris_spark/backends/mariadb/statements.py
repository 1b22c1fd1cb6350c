"""The texts of statements.

PyMySQL has no prepared statements. Values are hexadecimal literals, `X'...'`, which are binary strings whatever the
connection's character set and `sql_mode` are, and numbers; nothing is ever escaped.

A swap is one `UPDATE` that finds its row by the primary key and checks the version, and waits its turn for the row's
lock. InnoDB lets go of the lock before it flushes its log, so that waiting is short: with eight clients on one row, to
be told at once instead (no lock wait, or `SELECT ... FOR UPDATE SKIP LOCKED` before the `UPDATE`) gains 7 % and loses
half, respectively (measured: 2,100, 2,250 and 990 swaps/s).

A commit's rows ride with its swap in one packet: `BEGIN`, the swap, a statement that fails if the swap matched no row,
the rows, `COMMIT`. The server runs nothing after a failure, so a round trip does all of it or nothing, and losers are
told before their rows are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow, Table

BEGIN: Final = "START TRANSACTION"
COMMIT: Final = "COMMIT"
SWAPPED: Final = "SET @swapped = 18446744073709551615 + (ROW_COUNT() < 1)"
"""Fails, the sum being out of range, if the statement before it matched no row. (`DO` never fails.)"""

_MOST_ROWS: Final = 4_096
_MOST_BYTES: Final = 16 * 2**20
_BESIDE: Final = 8_192  # bytes of a statement, or of a packet, beside its rows


def literal(value: bytes) -> str:
    """Bytes as a binary string of SQL."""
    return f"X'{value.hex()}'"


def text(value: str) -> str:
    """A name as its bytes in UTF-8."""
    return literal(value.encode())


def read(realm: str, name: str) -> str:
    """Version and value."""
    return f"SELECT version, value FROM `references` WHERE {_key(realm, name)}"


def insert(realm: str, name: str, new: ReferenceRow) -> str:
    """Fails with 1062 if there is one."""
    row = ", ".join((text(realm), text(name), literal(new.version), literal(new.value)))
    return f"INSERT INTO `references` (realm, name, version, value) VALUES ({row})"


def swap(realm: str, name: str, expected: bytes, new: ReferenceRow) -> str:
    """Matches one row or none."""
    return (
        f"UPDATE `references` SET version = {literal(new.version)}, value = {literal(new.value)}"
        f" WHERE {_key(realm, name)} AND version = {literal(expected)}"
    )


def delete(realm: str, name: str, expected: bytes) -> str:
    """Matches one row or none."""
    return f"DELETE FROM `references` WHERE {_key(realm, name)} AND version = {literal(expected)}"


def put(realm: str, rows: Sequence[ObjectRow], packet_bytes: int) -> Iterator[str]:
    """Statements that insert rows, each as long as one packet may be; rows that exist stay.

    In the order of the key, which costs the fewest pages and lets nobody wait in a circle. `INSERT IGNORE` would turn
    every error into a warning.
    """
    of_realm, most = text(realm), min(packet_bytes, _MOST_BYTES) - _BESIDE
    values: list[str] = []
    size = 0
    for row in sorted(rows):
        value = f"({of_realm},{row.id},{row.part},{literal(row.value)})"
        if values and (len(values) >= _MOST_ROWS or size + len(value) > most):
            yield _put(values)
            values, size = [], 0
        values.append(value)
        size += len(value) + 1
    if values:
        yield _put(values)


def packets(statements: Sequence[str], packet_bytes: int) -> list[list[str]]:
    """Statements in as few packets as hold them, in their order."""
    found: list[list[str]] = []
    left = 0
    for statement in statements:
        if len(statement) >= left:
            found.append([])
            left = packet_bytes - 16
        found[-1].append(statement)
        left -= len(statement) + 1
    return found


def get(realm: str, keys: Sequence[ObjectKey]) -> str:
    """Id, part and value of what exists."""
    return f"SELECT id, part, value FROM objects FORCE INDEX (PRIMARY) WHERE {_keys(realm, keys)}"


def remove(realm: str, keys: Sequence[ObjectKey]) -> str:
    """Delete what exists."""
    return f"DELETE FROM objects WHERE {_keys(realm, keys)}"


def object_page(realm: str, after: ObjectKey, last: int, rows: int, size: int) -> str:
    """Id, part and value of the next rows, up to the id `last`: at most so many, and until `size` bytes are reached.

    Lengths are summed up before any value leaves the table.
    """
    return (
        "SELECT STRAIGHT_JOIN o.id, o.part, o.value FROM ("
        "SELECT id, part, SUM(bytes) OVER (ORDER BY id, part) - bytes AS before_it FROM ("
        "SELECT id, part, LENGTH(value) AS bytes FROM objects FORCE INDEX (PRIMARY)"
        f" WHERE realm = {text(realm)} AND (id > {after.id} OR id = {after.id} AND part > {after.part})"
        f" AND id <= {last} ORDER BY id, part LIMIT {rows}) AS page) AS sized"
        f" JOIN objects AS o ON o.realm = {text(realm)} AND o.id = sized.id AND o.part = sized.part"
        f" WHERE sized.before_it < {size} ORDER BY o.id, o.part"
    )


def reference_page(realm: str, after: bytes, rows: int, size: int) -> str:
    """Name, version and value of the next rows; the limits are those of `object_page`."""
    return (
        "SELECT STRAIGHT_JOIN r.name, r.version, r.value FROM ("
        "SELECT name, SUM(bytes) OVER (ORDER BY name) - bytes AS before_it FROM ("
        "SELECT name, LENGTH(value) AS bytes FROM `references` FORCE INDEX (PRIMARY)"
        f" WHERE realm = {text(realm)} AND name > {literal(after)} ORDER BY name LIMIT {rows}) AS page) AS sized"
        f" JOIN `references` AS r ON r.realm = {text(realm)} AND r.name = sized.name"
        f" WHERE sized.before_it < {size} ORDER BY r.name"
    )


def next_realm(table: Table, after: bytes) -> str:
    """The next realm that has rows, if any."""
    return f"SELECT realm FROM `{table}` WHERE realm > {literal(after)} ORDER BY realm LIMIT 1"


NOW = "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
"""The server's clock, milliseconds since 1970."""


def ends(realm: str) -> str:
    """The first id and the last."""
    return f"SELECT MIN(id), MAX(id) FROM objects WHERE realm = {text(realm)}"


def following(realm: str, first: int, last: int) -> str:
    """The first id from `first` to `last`, if any."""
    return f"SELECT MIN(id) FROM objects WHERE realm = {text(realm)} AND id >= {first} AND id <= {last}"


def estimate(realm: str, low: int, high: int) -> str:
    """The server's plan for a range of ids, whose column `rows` is about the number of rows, by two dives."""
    return (
        "EXPLAIN FORMAT=TRADITIONAL SELECT part FROM objects FORCE INDEX (PRIMARY)"
        f" WHERE realm = {text(realm)} AND id >= {low} AND id <= {high}"
    )


def chunk_end(realm: str, first: int) -> str:
    """The last id of about a thousand rows from `first` on."""
    return (
        f"SELECT MAX(id) FROM (SELECT id FROM objects WHERE realm = {text(realm)} AND id >= {first}"
        " ORDER BY id, part LIMIT 1000) AS chunk"
    )


def drop_objects(realm: str, first: int, last: int) -> str:
    """Delete a range of ids, ends included."""
    return f"DELETE FROM objects WHERE realm = {text(realm)} AND id >= {first} AND id <= {last}"


def drop_references(realm: str) -> str:
    """Delete all references of a realm."""
    return f"DELETE FROM `references` WHERE realm = {text(realm)}"


def _key(realm: str, name: str) -> str:
    return f"realm = {text(realm)} AND name = {text(name)}"


def _keys(realm: str, keys: Sequence[ObjectKey]) -> str:
    return f"realm = {text(realm)} AND (id, part) IN ({','.join(f'({key.id},{key.part})' for key in keys)})"


def _put(values: Sequence[str]) -> str:
    rows = ",".join(values)
    return f"INSERT INTO objects (realm, id, part, value) VALUES {rows} ON DUPLICATE KEY UPDATE part = part"
