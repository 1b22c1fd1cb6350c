"""Translation of Bigtable failures to errors, by outcome: certainly not done, or unknown.

| status | meaning | raised |
| --- | --- | --- |
| `UNAVAILABLE`, no connection could be made | nothing was sent | `TryAgainError` |
| `UNAVAILABLE`, no access token could be obtained | nothing was sent | `StateError` |
| `UNAVAILABLE` otherwise, `DEADLINE_EXCEEDED`, `CANCELLED` | it may have been done | unknown |
| `INTERNAL`, `UNKNOWN`, `ABORTED` | an internal problem of the server: it may have been done | unknown |
| `RESOURCE_EXHAUSTED` | a quota: refused before it was done | `TryAgainError` |
| any, if the library derived it from a stream reset | it may have been done | unknown |
| `NOT_FOUND` | no such instance, table, family or app profile | `StoreURIError` |
| `PERMISSION_DENIED`, `UNAUTHENTICATED` | the caller lacks the permission | `StateError` |
| `FAILED_PRECONDITION`, `INVALID_ARGUMENT`, `UNIMPLEMENTED`, `OUT_OF_RANGE` | refused | `StateError` |

*Unknown* means `OutcomeUnknownError` for a write, `TryAgainError` for a read. gRPC itself retries only
requests that a server certainly never processed. The retries of Google's client libraries are in their higher layers,
which are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc

from polaris_spark.errors import NoStoreError, OutcomeUnknownError, PolarisError, StateError, TryAgainError

_AGAIN: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "ABORTED", "CANCELLED", "RESOURCE_EXHAUSTED"}
)
_NAMES: Final[Mapping[int, str]] = {code.value[0]: code.name for code in grpc.StatusCode}
_PLUGIN: Final = "Getting metadata from plugin failed"


class RefusedEntryError(Exception):
    """Some entries of a bulk mutation were not applied. Status and message come from one failed entry, if possible from
    an entry for which a retry cannot succeed."""

    def __init__(self, status: int | None, message: str, left: Any) -> None:
        super().__init__(message)
        self.status = "UNKNOWN" if status is None else _name(status)
        self.left = left
        """A request with only the entries that were not applied."""


def status_of(error: Exception) -> str:
    """Return the name of the status of a failed call, or of a failed entry of a bulk mutation."""
    if isinstance(error, RefusedEntryError):
        return error.status
    code = error.code() if hasattr(error, "code") else None
    return "UNKNOWN" if code is None else str(code.name)


def words_of(error: Exception) -> str:
    """Return the status and message of a failed call or entry, on one line."""
    said = error.details() if hasattr(error, "details") else str(error)
    return f"{status_of(error)}: {' '.join((said or '').split())[:300]}"


def is_temporary(status: int) -> bool:
    """Whether a retry can succeed for an entry of a bulk mutation that failed with this status number."""
    return _name(status) in _AGAIN


def may_be_repeated(error: Exception) -> bool:
    """Whether a retry of an idempotent operation can succeed after this error."""
    return status_of(error) in _AGAIN and not _without_credentials(error)


def was_not_sent(error: Exception) -> bool:
    """Whether a request that failed with this error certainly never left this machine, because there was no
    connection."""
    return status_of(error) == "UNAVAILABLE" and "failed to connect to all addresses" in words_of(error)


def may_have_been_done(error: Exception) -> bool:
    """Whether a request that failed with this error may have changed something."""
    refused = status_of(error) == "RESOURCE_EXHAUSTED" and not _was_reset(error)
    return not (was_not_sent(error) or refused) or hasattr(error, "left")


def explained(
    error: Exception, where: str, doing: str, *, writes: bool, doubtful: bool = False
) -> PolarisError:
    """Translate a failure of Bigtable or its client library into one of this package's errors.

    Args:
        where: the store, for the message.
        doing: description of the operation, for the message.
        writes: whether the operation changes something.
        doubtful: whether an earlier attempt, or another part of the operation, may have changed something.
    """
    status, said = status_of(error), words_of(error)
    if writes and (_was_reset(error) or (doubtful and may_be_repeated(error))):
        return OutcomeUnknownError(
            f"{where}: {doing} failed ({said}); the change may or may not have been made"
        )
    if _without_credentials(error):
        return StateError(f"{where}: no access token could be obtained ({said}): check the credentials")
    if was_not_sent(error):
        return TryAgainError(f"{where} cannot be reached ({said}); nothing was changed")
    if status == "RESOURCE_EXHAUSTED":
        return TryAgainError(f"{where} has no capacity for {doing} now ({said}); nothing was changed")
    if status == "NOT_FOUND":
        return NoStoreError(where, f"check project, instance, prefix and app-profile: {said}")
    if status in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return StateError(
            f"{where} refused {doing} ({said}): check the credentials, and that they have the role "
            "roles/bigtable.user on the instance (roles/bigtable.admin to create tables)"
        )
    if status in ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "UNIMPLEMENTED", "OUT_OF_RANGE"):
        return StateError(f"{where} refused {doing} ({said})")
    if writes:
        return OutcomeUnknownError(
            f"{where}: {doing} failed ({said}); the change may or may not have been made"
        )
    return TryAgainError(f"{where}: {doing} failed ({said}); nothing was changed")


def of_condition(error: Exception, where: str, doing: str) -> PolarisError:
    """Return the error of this package for the failure of a conditional write. If the server refused the request, the
    message says which app profile conditional writes need."""
    found = explained(error, where, doing, writes=True)
    if status_of(error) in ("FAILED_PRECONDITION", "INVALID_ARGUMENT"):
        return StateError(
            f"{found}; conditional writes need an app profile with single-cluster routing that allows single-row "
            "transactions: set the option 'app-profile' to one"
        )
    return found


def _was_reset(error: Exception) -> bool:
    """Whether the HTTP/2 stream was reset, for instance by a proxy. The library derives a status from a reset. This
    status can suggest that the server refused the request although it did not."""
    return "RST_STREAM" in words_of(error)


def _without_credentials(error: Exception) -> bool:
    return _PLUGIN in words_of(error) and status_of(error) in ("UNAVAILABLE", "UNAUTHENTICATED")


def _name(number: int) -> str:
    return _NAMES.get(number, "UNKNOWN")
