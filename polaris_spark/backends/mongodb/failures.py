"""Translation of MongoDB failures to errors, by outcome: certainly not done, or unknown.

| response | code | meaning |
| --- | --- | --- |
| no primary found, no free connection, refused to connect | none | certainly **not** done |
| a write concern error | any | done by the primary, perhaps rolled back by the next one: unknown |
| `NotWritablePrimary` and similar, before anything was done | 10107, 13435, 10058 | not done |
| stepping down, shutting down, interrupted | 189, 91, 279, 355, 11600 to 11602 | unknown |
| deadline exceeded | 50, 202, 262 | unknown |
| a router lost its shard, or does not know the outcome | 6, 7, 89, 9001, 1, 8 | unknown |
| write conflict, overload, moving shards | 112, 365, 402, 433, 449, 462, 13388, ... | not done |
| a cursor ended | 43, 175, 237 | nothing read |
| any other error of the server | | not done |
| the connection ended, or no answer came in time | none | unknown |

*Unknown* means `OutcomeUnknownError` for a write, `TryAgainError` for a read. Codes are those of MongoDB's
`src/mongo/base/error_codes.yml`.
"""

from __future__ import annotations

from typing import Final

from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    InvalidOperation,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
)

from polaris_spark.errors import (
    OutcomeUnknownError,
    PolarisError,
    StateError,
    StorageFullError,
    StoreURIError,
    TryAgainError,
)

DUPLICATE: Final = 11_000

_NOT_PRIMARY: Final = frozenset({10_107, 13_435, 10_058})
_DOUBTFUL: Final = frozenset(
    {1, 6, 7, 8, 50, 64, 79, 89, 91, 100, 189, 202, 262, 279, 355, 9_001, 11_600, 11_601, 11_602}
)
_AGAIN: Final = frozenset(
    {24, 43, 46, 63, 112, 133, 134, 149, 150, 175, 187, 216, 237, 249, 272, 365, 402, 407, 433, 449, 462}
    | {13_388, *_NOT_PRIMARY}
)
_FULL: Final = 14_031
_UNAUTHORIZED: Final = 13
_UNAUTHENTICATED: Final = frozenset({18, 8_000})


def lost(error: PyMongoError) -> bool:
    """Whether the outcome of a write that failed with this error is unknown."""
    if isinstance(error, (ServerSelectionTimeoutError, WaitQueueTimeoutError)):
        return False
    if isinstance(error, NotPrimaryError):
        return _not_primary(error) not in _NOT_PRIMARY
    if isinstance(error, ConnectionFailure):
        # The driver labels connections that were never made; older drivers only set the cause.
        return not (
            error.has_error_label("SystemOverloadedError")
            or isinstance(error.__cause__, ConnectionRefusedError)
        )
    if isinstance(error, WriteConcernError):
        return True
    if isinstance(error, BulkWriteError):
        return bool((error.details or {}).get("writeConcernErrors")) or not _DOUBTFUL.isdisjoint(
            _codes(error)
        )
    if isinstance(error, OperationFailure):
        return error.code in _DOUBTFUL
    return not isinstance(error, (ConfigurationError, InvalidOperation))


def only_duplicates(error: BulkWriteError) -> bool:
    """Whether a bulk insert failed only for documents that exist already."""
    return not (error.details or {}).get("writeConcernErrors") and set(_codes(error)) == {DUPLICATE}


def of_read(where: str, error: PyMongoError) -> PolarisError:
    """Return the error of this package for the driver's error of a read."""
    if lost(error):
        return TryAgainError(f"{where} gave no answer ({error}); nothing was read")
    return _refused(where, error)


def of_write(where: str, error: PyMongoError) -> PolarisError:
    """Return the error of this package for the driver's error of a write."""
    if lost(error):
        return OutcomeUnknownError(
            f"{where} did not acknowledge a write ({error}); the change may or may not have been made"
        )
    return _refused(where, error)


def _refused(where: str, error: PyMongoError) -> PolarisError:
    if isinstance(error, InvalidOperation):
        return StateError(f"the store {where} is closed ({error})")
    if isinstance(error, ConfigurationError):
        return StoreURIError(f"{where} cannot be opened: {error}")
    if isinstance(error, ConnectionFailure):
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return StoreURIError(
                f"{where} presents an untrusted certificate: {error}; check tls and tlsCAFile"
            )
        return TryAgainError(f"{where} cannot be reached: {error}; nothing was changed")
    codes = _codes(error)
    if not _UNAUTHENTICATED.isdisjoint(codes):
        return StoreURIError(
            f"{where} refuses the connection: {error}; check the user, store.password and authSource"
        )
    if _UNAUTHORIZED in codes:
        return StoreURIError(f"{where}: {error}; grant the user the role readWrite on the database")
    if _FULL in codes:
        return StorageFullError(
            f"the disk of {where} is full; nothing was changed: free space, then try again"
        )
    if not _AGAIN.isdisjoint(codes):
        return TryAgainError(f"{where} failed: {error}; nothing was changed")
    return StateError(f"{where} refused the request: {error}; check that its collections belong to a store")


def _codes(error: PyMongoError) -> list[int]:
    if isinstance(error, BulkWriteError):
        return [each["code"] for each in (error.details or {}).get("writeErrors", ())]
    return [error.code] if isinstance(error, OperationFailure) and error.code is not None else []


def _not_primary(error: NotPrimaryError) -> int | None:
    details = error.details if isinstance(error.details, dict) else {}
    code: int | None = details.get("code")
    return code
