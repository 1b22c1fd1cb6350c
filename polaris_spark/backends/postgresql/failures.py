"""Translation of PostgreSQL failures to errors, by outcome: certainly not done, or unknown.

| response | SQLSTATE | meaning | raised |
| --- | --- | --- | --- |
| `ERROR` | any but 40003, 08xxx (except 08P01) | rolled back: certainly **not** applied | by class, below |
| ... lock, deadlock, serialization | 55P03, 40P01, 40001 | conflict with another transaction | `TryAgainError` |
| ... canceled, statement_timeout | 57014 | rolled back before its commit began | `TryAgainError` |
| ... out of disk | 53100 | nothing succeeds until space is freed | `StorageFullError` |
| ... out of memory, connections | 53xxx | resources | `TryAgainError` |
| ... read-only server | 25006 | a replica, or a failover in progress; the connection is dropped | `TryAgainError` |
| ... prepared statement gone | 26000, 0A000 | a pooler or DDL in between; the connection is dropped | `TryAgainError` |
| ... permission denied | 42501 | the user lacks a privilege | `StoreURIError` |
| ... no such table or schema | 42P01, 3F000 | there is no store | `StoreURIError` |
| ... damaged data or index | XX001, XX002 | | `CorruptionError` |
| ... anything else of class 58, XX | | an internal problem of the server | `TryAgainError` |
| ... anything else | | not the tables of a store | `StateError` |
| `FATAL`, `PANIC` | 57P01, 57P02, 57P05, ... | the session ended, perhaps after its commit | unknown |
| `ERROR` of a pooler or another server, whose own connection ended | 08xxx (not 08P01), 40003 | | unknown |
| the connection ended without a message | none | | unknown |
| no answer before the deadline | none | it may still be in progress | unknown |
| refused to connect | 28xxx, 3D000, 42501 | wrong password, user, database | `StoreURIError` |
| ... | 57P03, 53300, none | starting up, full, unreachable | `TryAgainError` |

*Unknown* means `OutcomeUnknownError` for a write, `TryAgainError` for a read. Idempotent work (reads, writes
and deletions of immutable rows) is first repeated once on a new connection. A server with synchronous replication that
cancels the wait for its standby has committed. It answers with success and a warning
(https://www.postgresql.org/docs/current/runtime-config-wal.html), and this backend reports success, too.

libpq gives no SQLSTATE for a refused connection, so `connecting` parses the text. If the server's messages are in
another language, a `TryAgainError` quotes the text.
"""

from __future__ import annotations

from typing import Final

from polaris_spark.backends.sessions import RefusedError
from polaris_spark.errors import (
    CorruptionError,
    NoStoreError,
    PolarisError,
    StateError,
    StorageFullError,
    StoreURIError,
    TryAgainError,
)

UNUSABLE_AFTER: Final = frozenset({"25006", "26000", "0A000"})
"""SQLSTATEs of errors after which the connection is dropped, because a new connection may work."""

_AGAIN: Final = ("40", "53", "55", "57", "58", "XX", "25006", "26000", "0A000")
_MISSING: Final = frozenset({"42P01", "3F000"})
_DAMAGED: Final = frozenset({"XX001", "XX002"})
_ADVICE: Final = (
    ("password authentication failed", "check the user and store.password"),
    ("no password supplied", "set store.password"),
    ("authentication failed", "check the user and how the server authenticates it (pg_hba.conf)"),
    (
        "no pg_hba.conf entry",
        "the server's pg_hba.conf does not allow this user to connect from this host; also check sslmode",
    ),
    ("permission denied for database", "grant the user CONNECT on the database"),
    ("certificate", "check sslmode and sslrootcert"),
    ("does not support SSL", "check sslmode"),
    ("invalid sslmode value", "check sslmode"),
)


def refused(where: str, error: RefusedError) -> PolarisError:
    """Return the error for a statement that the server refused. Nothing was changed."""
    code, text = error.code, f"{error} (SQLSTATE {error.code})"
    if code == "42501":
        return StoreURIError(f"{where}: {text}; grant the user the missing permissions, or use another user")
    if code in _MISSING:
        return NoStoreError(where, str(error))
    if code in _DAMAGED:
        return CorruptionError(f"{where} is damaged: {text}")
    if code == "53100":
        return StorageFullError(
            f"the disk of {where} is full; nothing was changed: free space, then try again"
        )
    if code == "57014":
        return TryAgainError(f"{where} canceled the statement: {text}; nothing was changed")
    if code.startswith(_AGAIN):
        return TryAgainError(f"{where} failed: {text}; nothing was changed")
    return StateError(f"{where} refused the statement: {text}; check that its tables belong to a store")


def connecting(where: str, message: str) -> PolarisError:
    """Return the error to raise for a failed attempt to connect. `message` is libpq's message; its text determines the
    type of the error."""
    text = " ".join(message.split()).removeprefix("connection failed: ")
    for words, advice in _ADVICE:
        if words in text:
            return StoreURIError(f"{where} refuses the connection: {text}; {advice}")
    if "does not exist" in text:
        what = "create the role first" if 'role "' in text else "create the database first (createdb)"
        return StoreURIError(f"{where} refuses the connection: {text}; check the URI, or {what}")
    return TryAgainError(f"{where} cannot be reached: {text}; nothing was changed")
