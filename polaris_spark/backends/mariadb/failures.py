"""Translation of MariaDB and MySQL failures to errors, by outcome: certainly not done, or unknown.

| response | error | meaning | raised |
| --- | --- | --- | --- |
| an error of a statement in autocommit mode | most | rolled back: certainly **not** applied | by number, below |
| an error of a statement before `COMMIT` | most | rolled back, by the client or at session end | by number, below |
| ... deadlock; certification failed (Galera) | 1213 | conflict with another transaction | `TryAgainError` |
| ... lock wait timeout | 1205 | row locked; only the statement was undone, so the client rolls back | `TryAgainError` |
| ... interrupted, max_statement_time | 1317, 1969, 3024 | rolled back before its commit began | `TryAgainError` |
| ... disk full | 1021, 1114 | nothing succeeds until space is freed | `StorageFullError` |
| ... no memory, no connections | 1037, 1040, ... | resources | `TryAgainError` |
| ... read-only, not ready | 1290, 1792, 1836, 1047 | a replica, a failover; reconnect | `TryAgainError` |
| ... packet too large | 1153 | the limit was lowered; a new connection reads the new limit | `TryAgainError` |
| ... access denied | 1044, 1142, 1143, 1227 | the user lacks a privilege | `StoreURIError` |
| ... no such table or database | 1146, 1049 | there is no store | `StoreURIError` |
| ... damaged table or index | 126, 1034, 1712, 1932, ... | | `CorruptionError` |
| ... anything else | | not the tables of a store, or a server configured differently | `StateError` |
| an error of `COMMIT` other than 1213 | any | it may come after the commit (`KILL`, time-out) | unknown |
| an error of an automatic commit | 1026, 1180, 1598 | the binary log or the engine failed midway | unknown |
| the session was ended | 1053, 1927, 4031, ... | perhaps after its commit | unknown |
| the connection ended, no answer | 2006, 2013 | | unknown |
| refused to connect | 1045, 1044, 1130, 1698, TLS | wrong password, user, database, certificate | `StoreURIError` |
| ... | 1040, 1203, 2003 | full, unreachable | `TryAgainError` |

*Unknown* means `OutcomeUnknownError` for a write, `TryAgainError` for a read. Idempotent work (reads, writes
and deletions of immutable rows) is first repeated once on a new connection.
(https://mariadb.com/kb/en/mariadb-error-code-reference/)
"""

from __future__ import annotations

import ssl
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

DEADLOCK: Final = "1213"
DUPLICATE: Final = "1062"
OVERFLOW: Final = "1690"
"""Error number for a number out of range. The statement `statements.SWAPPED` fails with this error if the swap before
it matched no row."""
NO_DATABASE: Final = "1049"

ENDING: Final = frozenset(
    {"1026", "1053", "1077", "1079", "1080", "1105", "1152", "1156", "1158", "1159", "1160", "1161", "1180"}
    | {"1184", "1598", "1927", "3169", "4031"}
)
"""Numbers of errors that end a session or may come from a commit, so that the outcome of the statement is unknown."""
UNUSABLE_AFTER: Final = frozenset({"1047", "1153", "1290", "1792", "1836"})
"""Numbers of errors after which the connection is dropped, because a new connection may work."""

_DENIED: Final = frozenset({"1044", "1142", "1143", "1227", "1370"})
_FULL: Final = frozenset({"1021", "1114"})
_AGAIN: Final = frozenset(
    {"1037", "1038", "1040", "1041", "1135", "1203", "1205", "1206", "1213", "1226", "1317", "1969", "3024"}
    | {"1030", "1129", "3572", *UNUSABLE_AFTER}
)
_DAMAGED: Final = frozenset({"126", "127", "145", "1033", "1034", "1194", "1195", "1712", "1877", "1932"})
_ADVICE: Final = {
    "1045": "check the user and store.password",
    "1698": "check the user and store.password, and how the server authenticates the user",
    "1044": "grant the user its privileges on the database, or create the database first",
    "1130": "the server does not allow this user to connect from this host",
    "1251": "check how the server authenticates the user",
    "2026": "check ssl_mode and ssl_ca",
    "2059": "check how the server authenticates the user",
    "2061": "check how the server authenticates the user",
    "3159": "the server requires TLS: check ssl_mode",
}


def refused(where: str, error: RefusedError) -> PolarisError:
    """Return the error for a statement that the server refused. Nothing was changed."""
    code, text = error.code, f"{error} (error {error.code})"
    if code in _DENIED:
        return StoreURIError(f"{where}: {text}; grant the user the missing permissions, or use another user")
    if code in ("1146", NO_DATABASE):
        return NoStoreError(where, str(error))
    if code in _DAMAGED:
        return CorruptionError(f"{where} is damaged: {text}")
    if code in _FULL:
        return StorageFullError(
            f"the disk of {where} is full: {text}; nothing was changed: free space, then try again"
        )
    if code in _AGAIN:
        return TryAgainError(f"{where} failed: {text}; nothing was changed")
    if code == "1665":
        return StateError(f"{where} refused the statement: {text}; set its binlog_format to ROW or MIXED")
    return StateError(f"{where} refused the statement: {text}; check that its tables belong to a store")


def connecting(where: str, error: Exception) -> PolarisError:
    """Return the error of this package for an attempt to connect that failed with an error of PyMySQL."""
    code = str(error.args[0]) if error.args and isinstance(error.args[0], int) else ""
    text = " ".join(str(error.args[1] if code and len(error.args) > 1 else error).split())
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLError):
        return StoreURIError(f"{where} refuses the connection: {text}; {_ADVICE['2026']}")
    if isinstance(error, RuntimeError):  # an authentication method for which PyMySQL lacks a library
        return StoreURIError(
            f"{where} cannot be opened: {text}; install this package, or (not for ed25519_password) encrypt the "
            "connection with ssl_mode=required"
        )
    if code in _ADVICE:
        return StoreURIError(f"{where} refuses the connection: {text}; {_ADVICE[code]}")
    if code == NO_DATABASE:
        return NoStoreError(where, text)
    return TryAgainError(f"{where} cannot be reached: {text}; nothing was changed")
