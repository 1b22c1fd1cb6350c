"""Texts of the SQL statements.

PyMySQL has no prepared statements. Values are numbers, or hexadecimal literals (`X'...'`), which are binary strings
regardless of the connection's character set and `sql_mode`. Nothing is ever escaped.

A swap is one `UPDATE` that finds its row by the primary key, checks the version, and waits for the row's lock. InnoDB
releases the lock before it flushes its log, so the wait is short. Two alternatives would return at once instead of
waiting: an `UPDATE` without lock waits, and `SELECT ... FOR UPDATE SKIP LOCKED` before the `UPDATE`. With eight clients
on one row, the first is 7 % faster, and the second only half as fast (measured: 2,100 swaps/s with waiting, 2,250 and
990 swaps/s with the alternatives).

A commit's rows and its swap go in one packet: `BEGIN`, the swap, a statement that fails if the swap matched no row,
the rows, `COMMIT`. The server runs no statements after a failure, so one round trip does everything or nothing. If the
swap fails, the server has not processed the rows yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow, Table

BEGIN: Final = "START TRANSACTION"
COMMIT: Final = "COMMIT"
SWAPPED: Final = "SET @swapped = 18446744073709551615 + (ROW_COUNT() < 1)"
"""Statement that fails if the statement before it matched no row, because the sum is then out of range. (`DO` would not
fail.)"""

_MOST_ROWS: Final = 4_096
_MOST_BYTES: Final = 16 * 2**20
_BESIDE: Final = 8_192  # bytes of a statement or packet in addition to its rows


def literal(value: bytes) -> str:
    """Return bytes as an SQL binary string literal."""
    return f"X'{value.hex()}'"


def text(value: str) -> str:
    """Return a name, encoded as UTF-8, as an SQL binary string literal."""
    return literal(value.encode())


def read(realm: str, name: str) -> str:
    """Return a statement that selects the version and value of a reference."""
    return f"SELECT version, value FROM `references` WHERE {_key(realm, name)}"


def insert(realm: str, name: str, new: ReferenceRow) -> str:
    """Return a statement that inserts a reference. It fails with error 1062 if the reference exists."""
    row = ", ".join((text(realm), text(name), literal(new.version), literal(new.value)))
    return f"INSERT INTO `references` (realm, name, version, value) VALUES ({row})"


def swap(realm: str, name: str, expected: bytes, new: ReferenceRow) -> str:
    """Return a statement that updates a reference if it has the expected version. It matches one row or none."""
    return (
        f"UPDATE `references` SET version = {literal(new.version)}, value = {literal(new.value)}"
        f" WHERE {_key(realm, name)} AND version = {literal(expected)}"
    )


def delete(realm: str, name: str, expected: bytes) -> str:
    """Return a statement that deletes a reference if it has the expected version. It matches one row or none."""
    return f"DELETE FROM `references` WHERE {_key(realm, name)} AND version = {literal(expected)}"


def put(realm: str, rows: Sequence[ObjectRow], packet_bytes: int) -> Iterator[str]:
    """Yield statements that insert rows. Each statement is short enough for one packet. Existing rows are not changed.

    Rows are inserted in key order, which touches the fewest pages and prevents deadlocks. `INSERT IGNORE` is not used:
    it would turn every error into a warning.
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
    """Distribute statements, in order, to as few packets as possible. Return the statements of each packet."""
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
    """Return a statement that selects id, part and value of the rows that exist among `keys`."""
    return f"SELECT id, part, value FROM objects FORCE INDEX (PRIMARY) WHERE {_keys(realm, keys)}"


def remove(realm: str, keys: Sequence[ObjectKey]) -> str:
    """Return a statement that deletes the rows with these keys."""
    return f"DELETE FROM objects WHERE {_keys(realm, keys)}"


def object_page(realm: str, after: ObjectKey, last: int, rows: int, size: int) -> str:
    """Return a statement that selects id, part and value of the rows with keys above `after` and ids up to `last`, in
    order. It selects at most `rows` rows, and ends with the row at which the total size of the values reaches `size`
    bytes.

    The server sums the lengths before it reads any value from the table.
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
    """Return a statement that selects name, version and value of the references of a realm with names above `after`, in
    order. It selects at most `rows` rows, and ends with the row at which the total size of the values reaches `size`
    bytes."""
    return (
        "SELECT STRAIGHT_JOIN r.name, r.version, r.value FROM ("
        "SELECT name, SUM(bytes) OVER (ORDER BY name) - bytes AS before_it FROM ("
        "SELECT name, LENGTH(value) AS bytes FROM `references` FORCE INDEX (PRIMARY)"
        f" WHERE realm = {text(realm)} AND name > {literal(after)} ORDER BY name LIMIT {rows}) AS page) AS sized"
        f" JOIN `references` AS r ON r.realm = {text(realm)} AND r.name = sized.name"
        f" WHERE sized.before_it < {size} ORDER BY r.name"
    )


def next_realm(table: Table, after: bytes) -> str:
    """Return a statement that selects the first realm name above `after` that has rows in `table`. It selects no row if
    there is none."""
    return f"SELECT realm FROM `{table}` WHERE realm > {literal(after)} ORDER BY realm LIMIT 1"


NOW = "SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
"""Statement that selects the time of the server's clock, in milliseconds since 1970."""


def ends(realm: str) -> str:
    """Return a statement that selects the first and the last id of a realm."""
    return f"SELECT MIN(id), MAX(id) FROM objects WHERE realm = {text(realm)}"


def following(realm: str, first: int, last: int) -> str:
    """Return a statement that selects the smallest existing id from `first` to `last`, or NULL if there is none."""
    return f"SELECT MIN(id) FROM objects WHERE realm = {text(realm)} AND id >= {first} AND id <= {last}"


def estimate(realm: str, low: int, high: int) -> str:
    """Return a statement that shows the server's plan for a read of a range of ids. The plan's column `rows` is the
    server's estimate of the number of rows, from two index dives."""
    return (
        "EXPLAIN FORMAT=TRADITIONAL SELECT part FROM objects FORCE INDEX (PRIMARY)"
        f" WHERE realm = {text(realm)} AND id >= {low} AND id <= {high}"
    )


def chunk_end(realm: str, first: int) -> str:
    """Return a statement that selects the last id of a chunk of about a thousand rows of `objects` that begins at id
    `first`."""
    return (
        f"SELECT MAX(id) FROM (SELECT id FROM objects WHERE realm = {text(realm)} AND id >= {first}"
        " ORDER BY id, part LIMIT 1000) AS chunk"
    )


def drop_objects(realm: str, first: int, last: int) -> str:
    """Return a statement that deletes the rows of `objects` with ids from `first` to `last`, both inclusive."""
    return f"DELETE FROM objects WHERE realm = {text(realm)} AND id >= {first} AND id <= {last}"


def drop_references(realm: str) -> str:
    """Return a statement that deletes all references of a realm."""
    return f"DELETE FROM `references` WHERE realm = {text(realm)}"


def _key(realm: str, name: str) -> str:
    return f"realm = {text(realm)} AND name = {text(name)}"


def _keys(realm: str, keys: Sequence[ObjectKey]) -> str:
    return f"realm = {text(realm)} AND (id, part) IN ({','.join(f'({key.id},{key.part})' for key in keys)})"


def _put(values: Sequence[str]) -> str:
    rows = ",".join(values)
    return f"INSERT INTO objects (realm, id, part, value) VALUES {rows} ON DUPLICATE KEY UPDATE part = part"
