"""What a failure of MariaDB or MySQL means for what was asked: certainly not done, or not known.

| what came back | error | what it means | raised |
| --- | --- | --- | --- |
| an error of a statement that commits by itself | most | undone: certainly **not** applied | by number, below |
| an error of a statement before `COMMIT` | most | rolled back, by us or when the session ends | by number, below |
| ... deadlock; certification failed (Galera) | 1213 | others were faster | `TryAgainError` |
| ... lock wait timeout | 1205 | the row is held; only the statement was undone, hence `ROLLBACK` | `TryAgainError` |
| ... interrupted, max_statement_time | 1317, 1969, 3024 | undone before its commit began | `TryAgainError` |
| ... disk full | 1021, 1114 | nothing succeeds before there is space | `StorageFullError` |
| ... no memory, no connections | 1037, 1040, ... | resources | `TryAgainError` |
| ... read-only, not ready | 1290, 1792, 1836, 1047 | a replica, a failover; connect again | `TryAgainError` |
| ... packet too large | 1153 | the limit was lowered; a new connection asks for it | `TryAgainError` |
| ... access denied | 1044, 1142, 1143, 1227 | the user may not | `StoreURIError` |
| ... no such table or database | 1146, 1049 | no store there | `StoreURIError` |
| ... damaged table or index | 126, 1034, 1712, 1932, ... | | `CorruptionError` |
| ... anything else | | tables that are not ours, or a server set up otherwise | `StateError` |
| an error of `COMMIT` but 1213 | any | it may come after the commit (`KILL`, time-out) | unknown |
| an error while it commits by itself | 1026, 1180, 1598 | the binary log or the engine failed half way | unknown |
| the session was ended | 1053, 1927, 4031, ... | perhaps after its commit | unknown |
| the connection ended, no answer | 2006, 2013 | | unknown |
| refused to connect | 1045, 1044, 1130, 1698, TLS | wrong password, user, database, certificate | `StoreURIError` |
| ... | 1040, 1203, 2003 | full, unreachable | `TryAgainError` |

*Unknown* is `OutcomeUnknownError` for a write, `TryAgainError` for a read. Work that may be repeated (reads, writes of
immutable rows, their deletion) is repeated once on a new connection before.
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
"""A number out of range: how a transaction of ours says that its swap matched no row."""
NO_DATABASE: Final = "1049"

ENDING: Final = frozenset(
    {"1026", "1053", "1077", "1079", "1080", "1105", "1152", "1156", "1158", "1159", "1160", "1161", "1180"}
    | {"1184", "1598", "1927", "3169", "4031"}
)
"""Errors that end a session, or may come from a commit: whether the statement was done is not known."""
UNUSABLE_AFTER: Final = frozenset({"1047", "1153", "1290", "1792", "1836"})
"""Errors after which another connection may do better."""

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
    "1130": "the server does not admit this user from here",
    "1251": "check how the server authenticates the user",
    "2026": "check ssl_mode and ssl_ca",
    "2059": "check how the server authenticates the user",
    "2061": "check how the server authenticates the user",
    "3159": "the server admits nobody without TLS: check ssl_mode",
}


def refused(where: str, error: RefusedError) -> PolarisError:
    """A refusal as one of our errors; nothing was changed."""
    code, text = error.code, f"{error} (error {error.code})"
    if code in _DENIED:
        return StoreURIError(f"{where}: {text}; grant the user what it needs, or use another user")
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
        return StateError(f"{where} refused: {text}; set its binlog_format to ROW or MIXED")
    return StateError(f"{where} refused: {text}; are its tables those of a store?")


def connecting(where: str, error: Exception) -> PolarisError:
    """Why no connection was made, from what PyMySQL raised."""
    code = str(error.args[0]) if error.args and isinstance(error.args[0], int) else ""
    text = " ".join(str(error.args[1] if code and len(error.args) > 1 else error).split())
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLError):
        return StoreURIError(f"{where} refuses the connection: {text}; {_ADVICE['2026']}")
    if isinstance(error, RuntimeError):  # a method of passwords for which PyMySQL has no library
        return StoreURIError(f"{where} refuses the connection: {text}; or encrypt it: ssl_mode=required")
    if code in _ADVICE:
        return StoreURIError(f"{where} refuses the connection: {text}; {_ADVICE[code]}")
    if code == NO_DATABASE:
        return NoStoreError(where, text)
    return TryAgainError(f"{where} cannot be reached: {text}; nothing was changed")
