"""Translation of Bigtable failures to errors, by outcome: certainly not done, or unknown.

| status | meaning | raised |
| --- | --- | --- |
| `UNAVAILABLE`, no connection came about | nothing was sent | `TryAgainError` |
| `UNAVAILABLE`, no credentials could be got | nothing was sent | `StateError` |
| `UNAVAILABLE` otherwise, `DEADLINE_EXCEEDED`, `CANCELLED` | it may have been done | unknown |
| `INTERNAL`, `UNKNOWN`, `ABORTED` | the server's own trouble: it may have been done | unknown |
| `RESOURCE_EXHAUSTED` | a quota: refused before it was done | `TryAgainError` |
| any, made by the library of a reset of the stream | it may have been done | unknown |
| `NOT_FOUND` | no such instance, table, family or app profile | `StoreURIError` |
| `PERMISSION_DENIED`, `UNAUTHENTICATED` | the caller may not | `StateError` |
| `FAILED_PRECONDITION`, `INVALID_ARGUMENT`, `UNIMPLEMENTED`, `OUT_OF_RANGE` | refused | `StateError` |

*Unknown* means `OutcomeUnknownError` for a write, `TryAgainError` for a read. gRPC itself repeats only what a server
certainly never looked at; the repetitions of Google's client libraries are in their layers above, which are not used.
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
    """Entries of a bulk mutation were not applied; status and words are those of the gravest one's own answer."""

    def __init__(self, status: int | None, message: str, left: Any) -> None:
        super().__init__(message)
        self.status = "UNKNOWN" if status is None else _name(status)
        self.left = left
        """The request for them alone."""


def status_of(error: Exception) -> str:
    """Name of the status of a failed call, or of a failed entry of a bulk mutation."""
    if isinstance(error, RefusedEntryError):
        return error.status
    code = error.code() if hasattr(error, "code") else None
    return "UNKNOWN" if code is None else str(code.name)


def words_of(error: Exception) -> str:
    """What the server, or the library, said, in one line."""
    said = error.details() if hasattr(error, "details") else str(error)
    return f"{status_of(error)}: {' '.join((said or '').split())[:300]}"


def is_temporary(status: int) -> bool:
    """Whether an entry with the number of this status may succeed if it is repeated."""
    return _name(status) in _AGAIN


def may_be_repeated(error: Exception) -> bool:
    """Whether an operation that does no harm when repeated may succeed if it is."""
    return status_of(error) in _AGAIN and not _without_credentials(error)


def was_not_sent(error: Exception) -> bool:
    """Whether a request certainly never left this machine, because no connection came about."""
    return status_of(error) == "UNAVAILABLE" and "failed to connect to all addresses" in words_of(error)


def may_have_been_done(error: Exception) -> bool:
    """Whether a request that failed in this way may have changed something."""
    refused = status_of(error) == "RESOURCE_EXHAUSTED" and not _was_reset(error)
    return not (was_not_sent(error) or refused) or hasattr(error, "left")


def explained(
    error: Exception, where: str, doing: str, *, writes: bool, doubtful: bool = False
) -> PolarisError:
    """Return a failure as an error of this package.

    Args:
        where: the store, for the message.
        doing: what was under way, for the message.
        writes: whether it would have changed something.
        doubtful: whether an earlier part or attempt of a write may have been done, or was.
    """
    status, said = status_of(error), words_of(error)
    if writes and (_was_reset(error) or (doubtful and may_be_repeated(error))):
        return OutcomeUnknownError(f"{where}: {doing} failed ({said}); it may or may not have happened")
    if _without_credentials(error):
        return StateError(f"{where}: no access token could be got ({said}): check the credentials")
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
        return OutcomeUnknownError(f"{where}: {doing} failed ({said}); it may or may not have happened")
    return TryAgainError(f"{where}: {doing} failed ({said}); nothing was changed")


def of_condition(error: Exception, where: str, doing: str) -> PolarisError:
    """As `explained`, for a conditional write: an app profile may not allow these."""
    found = explained(error, where, doing, writes=True)
    if status_of(error) in ("FAILED_PRECONDITION", "INVALID_ARGUMENT"):
        return StateError(
            f"{found}; conditional writes need an app profile with single-cluster routing that allows single-row "
            "transactions: name one by the option app-profile"
        )
    return found


def _was_reset(error: Exception) -> bool:
    """Whether the stream was reset, by a proxy for instance: the library makes up a status, a refusal among others."""
    return "RST_STREAM" in words_of(error)


def _without_credentials(error: Exception) -> bool:
    return _PLUGIN in words_of(error) and status_of(error) in ("UNAVAILABLE", "UNAUTHENTICATED")


def _name(number: int) -> str:
    return _NAMES.get(number, "UNKNOWN")
