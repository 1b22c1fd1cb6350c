"""Translation of Cassandra failures to errors, by outcome: certainly not done, or unknown.

| response | meaning | raised |
| --- | --- | --- |
| `NoHostAvailable`, sent to no node | no node is connected: certainly **not** done | `TryAgainError` |
| `Unavailable` | too few live replicas, detected before anything was sent to a replica | `TryAgainError` |
| ... of an LWT, at the consistency level of rows | perhaps detected after Paxos decided, before the write | unknown |
| `Unauthorized` | the user lacks a permission | `StoreURIError` |
| `InvalidRequest`, no such keyspace or table | there is no store | `StoreURIError` |
| ... any other | not the tables of a store | `StateError` |
| `WriteTimeout` of an LWT (`CAS`) | accepted by some replicas; a later round may complete it | unknown |
| ... `SIMPLE` of an LWT | decided, but not yet written to all replicas | unknown |
| `ReadTimeout`, `ReadFailure`, `WriteFailure`, `ServerError`, `Overloaded` | some replicas may have done it | unknown |
| `OperationTimedOut`, `ConnectionShutdown` | no answer; it may still be in progress | unknown |

*Unknown* means `OutcomeUnknownError` for a write, `TryAgainError` for a read. See
https://cassandra.apache.org/doc/latest/cassandra/architecture/guarantees.html and the native protocol's error codes.
The driver's retries are off: after a lost connection its policies would send a statement to the next node, and a
conditional statement that had already been applied would then report that it was not applied. `Requests` repeats
idempotent requests.
"""

from __future__ import annotations

from typing import Final

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    Unauthorized,
    Unavailable,
)

from polaris_spark.backends.cassandra.driver import NoHostAvailable
from polaris_spark.errors import (
    NoStoreError,
    OutcomeUnknownError,
    PolarisError,
    StateError,
    StoreURIError,
    TryAgainError,
)

_SERIAL: Final = frozenset({ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL})
_MISSING: Final = ("unconfigured table", "does not exist", "unconfigured columnfamily")


def transient(error: Exception) -> bool:
    """Whether a request that failed with this error may succeed later."""
    return not isinstance(error, (Unauthorized, InvalidRequest, AuthenticationFailed))


def too_much(error: BaseException | None) -> bool:
    """Whether this error of a failed read is one that occurs when a node has to read too many rows."""
    return isinstance(error, (ReadTimeout, ReadFailure, OperationTimedOut))


def explained(
    where: str, error: Exception, *, writes: bool, sent: bool = True, conditional: bool = False
) -> PolarisError:
    """Return the error of this package for a failure that the driver reports.

    Args:
        where: the store's URI, for the message.
        writes: whether the request changes anything.
        sent: whether the request was sent to any node, in this attempt or an earlier one.
        conditional: whether the request is a lightweight transaction.
    """
    if isinstance(error, PolarisError):
        return error
    text = described(error)
    if isinstance(error, Unauthorized):
        return StoreURIError(f"{where}: {text}; grant the user the missing permissions, or use another user")
    if isinstance(error, InvalidRequest):
        if any(words in text for words in _MISSING):
            return NoStoreError(where, text)  # or the node has not loaded the tables yet
        return StateError(f"{where} refused: {text}; check that its tables belong to a store")
    if isinstance(error, Unavailable) and not (conditional and error.consistency not in _SERIAL):
        return TryAgainError(
            f"{where}: {error.alive_replicas} of the {error.required_replicas} replicas that {text} needs are up; "
            "nothing was changed"
        )
    if not sent:
        return TryAgainError(f"{where} cannot be reached: {text}; nothing was changed")
    if writes:
        return OutcomeUnknownError(f"{where} failed: {text}; the change may or may not have been made")
    return TryAgainError(f"{where} failed: {text}; nothing was changed")


def connecting(where: str, error: Exception) -> PolarisError:
    """Return the error of this package for a driver error that occurred while a session was opened."""
    text = described(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return StoreURIError(f"{where} presents an untrusted certificate: {text}; check tls and tls_ca")
    if any(isinstance(cause, AuthenticationFailed) for cause in _causes(error)):
        return StoreURIError(f"{where} refuses the connection: {text}; check the user and store.password")
    return TryAgainError(f"{where} cannot be reached: {text}; nothing was changed")


def described(error: Exception) -> str:
    """Return the driver's message on one line. For `Unavailable`, return only the consistency level."""
    if causes := _causes(error):
        return "; ".join(sorted({described(cause) for cause in causes}))
    if isinstance(error, Unavailable):
        return f"consistency {_level(error.consistency)}"
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _causes(error: Exception) -> list[Exception]:
    """Return the errors of the individual nodes from a `NoHostAvailable` error."""
    errors = error.errors if isinstance(error, NoHostAvailable) else None
    return list(errors.values()) if isinstance(errors, dict) else []


def _level(value: int) -> str:
    return str(ConsistencyLevel.value_to_name.get(value, value))
