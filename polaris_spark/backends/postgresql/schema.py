"""The schema and the two tables of a store.

- Names are `bytea`, in UTF-8: `text` cannot hold NUL, and a collation could change the order of names or treat two
  names as equal.
- `objects`: rows are inserted once and never updated, so pages are filled completely. Nearly all rows have at
  most 8 KiB. About a ninth of the rows have more than 2 KiB; from this size on, PostgreSQL by default compresses a
  value or moves it to the TOAST table, with a row and an index entry for every 2 KB. `toast_tuple_target` keeps values
  in the page (measured on the rows of a catalog: writes take 10 to 20 % less time, and the table has a sixth more
  bytes). Larger values are compressed, with LZ4 if the server supports it.
- `references`: few rows, each swapped very often. No index covers the columns that change, and half of each page is
  left free, so every swap is a heap-only update (HOT), and the next update on the page prunes the dead row without
  vacuum. If dead rows pile up nevertheless, autovacuum starts at a fixed number of dead rows, not at a share of the
  table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polaris_spark.backends.limits import refuse_newer_format
from polaris_spark.backends.postgresql.session import PostgreSQLSession
from polaris_spark.errors import NoStoreError, StoreURIError

FORMAT: Final = 1
"""Version of the format of the two tables. It is stored in the comment of the table `objects`."""

_MARK: Final = "polaris_spark store, format "
_LOCK: Final = 0x506F5370  # advisory lock, held until the end of the transaction that creates the tables


def quoted(name: str) -> str:
    """Return a name as a quoted SQL identifier. The name may contain any characters."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL string literal. The text may contain any characters."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def begin(session: PostgreSQLSession, settings: Mapping[str, str]) -> None:
    """Apply server settings, given by name, to a new session.

    Raises:
        RefusedError: the server does not support one of the settings.
    """
    session.script("; ".join(f"SET {name} = {literal(value)}" for name, value in settings.items()))


def check(session: PostgreSQLSession, where: str, schema: str) -> None:
    """Check that a schema holds a store, in a format that this release supports.

    Raises:
        StoreURIError: the schema is empty, or holds tables of another program.
        NewerFormatError: a newer release made the store.
    """
    mark, table = _mark(session, schema)
    if not table:
        raise NoStoreError(f"{where} (schema {schema!r})")
    _refuse(mark, where, schema)


def create(session: PostgreSQLSession, where: str, schema: str) -> None:
    """Create the schema and the store's tables if they are missing. A lock admits one session at a time, because
    `IF NOT EXISTS` can fail if two sessions create the same table.

    Raises:
        StoreURIError: the schema holds tables of another program.
        NewerFormatError: a newer release made the store.
        RefusedError: the user lacks the permission to create tables.
    """
    mark, table = _mark(session, schema)
    if table:
        _refuse(mark, where, schema)
        return
    name = quoted(schema)
    found = session.script(f"SELECT 1 FROM pg_namespace WHERE nspname = {literal(schema)}").ntuples
    compression = _compression(session)
    session.script(
        f"""
        SELECT pg_advisory_xact_lock({_LOCK});
        {"" if found else f"CREATE SCHEMA IF NOT EXISTS {name};"}
        CREATE TABLE IF NOT EXISTS {name}.objects (
            realm bytea NOT NULL, id bigint NOT NULL, part integer NOT NULL, value bytea {compression} NOT NULL,
            PRIMARY KEY (realm, id, part)
        ) WITH (toast_tuple_target = 8160);
        CREATE TABLE IF NOT EXISTS {name}."references" (
            realm bytea NOT NULL, name bytea NOT NULL, version bytea NOT NULL, value bytea {compression} NOT NULL,
            PRIMARY KEY (realm, name)
        ) WITH (
            fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000
        );
        COMMENT ON TABLE {name}.objects IS {literal(f"{_MARK}{FORMAT}")};
        """
    )


def _compression(session: PostgreSQLSession) -> str:
    found = session.script(
        "SELECT 1 FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)"
    )
    return "COMPRESSION lz4" if found.ntuples else ""


def _mark(session: PostgreSQLSession, schema: str) -> tuple[str, bool]:
    """Return the comment of the table `objects` (empty if there is none), and whether one of the store's tables exists.

    If only the table `references` exists, return its comment. Such a table belongs to another program, because the
    tables of a store are created in one transaction. A store's `references` has no comment."""
    found = session.script(
        "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE n.nspname = {literal(schema)} AND c.relname IN ('objects', 'references')"
        " ORDER BY c.relname LIMIT 1"
    )
    if not found.ntuples:
        return "", False
    return (found.get_value(0, 0) or b"").decode("utf-8", "replace"), True


def _refuse(mark: str, where: str, schema: str) -> None:
    number = mark.removeprefix(_MARK)
    if number == mark or not number.isdigit():
        raise StoreURIError(
            f"{where}: the schema {schema!r} holds tables of another program; choose another schema"
        )
    refuse_newer_format(where, int(number), FORMAT)
