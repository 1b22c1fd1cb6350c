"""Translation of DynamoDB failures to errors, by outcome: certainly not done, or unknown.

| response | meaning | raised |
| --- | --- | --- |
| `ProvisionedThroughputExceeded`, `Throttling`, `RequestLimitExceeded`, ... | nothing was done | `TryAgainError` |
| no connection could be made | nothing was sent | `TryAgainError` |
| `ConditionalCheckFailedException` | the row has another version | `ConditionFailedError`, a conflict |
| `ResourceNotFoundException` | the table does not exist | `NoStoreError` |
| `UnrecognizedClient`, `InvalidSignature`, `AccessDenied`, ..., no credentials | nothing was done | `StateError` |
| any other answer of status 4xx | nothing was done | `StateError` |
| status 5xx, no answer in time, a lost connection, a truncated answer | unknown | below |

*Unknown* means `OutcomeUnknownError` for a write, `TryAgainError` for a read. See
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html, which also says that a write
with a 5xx answer may have been done.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec
from botocore import exceptions
from botocore.parsers import ResponseParserError

from polaris_spark.errors import NoStoreError, OutcomeUnknownError, PolarisError, StateError, TryAgainError

_THROTTLED: Final = frozenset(
    {
        "LimitExceededException",  # too many tables are being created
        "ProvisionedThroughputExceededException",
        "ReplicatedWriteConflictException",  # a write in another region of a strongly consistent global table
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "TransactionConflictException",
        "429",
    }
)
_CREDENTIALS: Final = frozenset(
    {
        "ExpiredTokenException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "UnrecognizedClientException",
    }
)
_NOT_SENT: Final = (
    exceptions.EndpointConnectionError,
    exceptions.ConnectTimeoutError,
    exceptions.ProxyConnectionError,
)
_NO_CREDENTIALS: Final = (
    exceptions.CredentialRetrievalError,
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.SSOError,
)


class HalfAnswerError(Exception):
    """A response of DynamoDB was truncated."""


CAUGHT: Final = (exceptions.ClientError, exceptions.BotoCoreError, ResponseParserError, HalfAnswerError)
"""Exceptions that the driver and `check_whole` raise."""


def check_whole(response_dict: dict[str, Any], **_: object) -> None:
    """Check that a response is complete. The driver calls this hook before it parses a response.

    The driver itself treats a response that ends within its headers as an empty response, that is, as an absent row;
    and it treats an error with incomplete JSON as an unknown error.

    Raises:
        HalfAnswerError: the body is empty, although DynamoDB never sends an empty body; or the body does not match its
            checksum; or the response is an error, and its body is an incomplete JSON object.
    """
    body, status = response_dict["body"], response_dict["status_code"]
    checksum = response_dict["headers"].get("x-amz-crc32")
    if (
        not body
        or (checksum and checksum != str(zlib.crc32(body)))
        or (status >= 400 and _is_half_object(body))  # the driver detects this in other responses
    ):
        raise HalfAnswerError(f"a response with status {status} was truncated")


def _is_half_object(body: bytes) -> bool:
    if not body.startswith(b"{"):
        return False  # the response is not from DynamoDB, but perhaps from a proxy
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError:
        return True
    return False


class ConditionFailedError(Exception):
    """The condition of a conditional write is false. `item` is the existing item; empty or None if there is none."""

    def __init__(self, item: dict[str, Any] | None) -> None:
        super().__init__("the condition does not hold")
        self.item = item


class TableInUseError(StateError):
    """A table cannot be created, because it exists already, or is being created or deleted."""


def explained(where: str, operation: str, error: Exception, *, writes: bool) -> Exception:
    """Return the error of this package for an error of the driver. The message quotes the driver's message, which
    contains no secrets."""
    if isinstance(error, exceptions.ClientError):
        return _answered(where, operation, error, writes=writes)
    text = f"{where}: {operation} failed: {_line(str(error))}"
    if isinstance(error, _NO_CREDENTIALS):
        return StateError(
            f"{text}; give an access key (the URI's user and store.password), or set one in the environment, or "
            "give the instance a role"
        )
    if "certificate verify failed" in text.lower():
        return StateError(f"{text}; check the endpoint, and the certificates that this machine trusts")
    if isinstance(error, _NOT_SENT):
        return TryAgainError(f"{where} cannot be reached: {_line(str(error))}; nothing was changed")
    return _unknown(text, writes=writes)


def _answered(where: str, operation: str, error: Any, *, writes: bool) -> Exception:
    answer = error.response
    code = answer.get("Error", {}).get("Code", "")
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    said = f"{code}: {_line(answer.get('Error', {}).get('Message', ''))}"
    if code == "ConditionalCheckFailedException":
        return ConditionFailedError(answer.get("Item"))
    if code == "ResourceNotFoundException":
        return NoStoreError(where, said)
    if code == "ResourceInUseException":
        return TableInUseError(f"{where}: {said}")
    if code in _THROTTLED or status == 429:
        return TryAgainError(f"{where} is overloaded ({said}); nothing was changed")
    if code in _CREDENTIALS:
        return StateError(
            f"{where} refused {operation} ({said}): check the access key, its secret and this machine's clock"
        )
    if code.startswith("AccessDenied"):
        return StateError(
            f"{where} refused {operation} ({said}): grant the permissions that the documentation page 'Databases' "
            "lists"
        )
    if 400 <= status < 500:
        return StateError(
            f"{where} refused {operation} ({said}); check that it is DynamoDB and that its tables belong to a store"
        )
    return _unknown(f"{where}: {operation} failed with status {status} ({said})", writes=writes)


def _unknown(text: str, *, writes: bool) -> PolarisError:
    if writes:
        return OutcomeUnknownError(f"{text}; the change may or may not have been made")
    return TryAgainError(f"{text}; nothing was changed")


def _line(text: str) -> str:
    return text.partition("\n")[0][:300]
