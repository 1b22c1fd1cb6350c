"""Translation of DynamoDB failures to errors, by outcome: certainly not done, or unknown.

| response | meaning | raised |
| --- | --- | --- |
| `ProvisionedThroughputExceeded`, `Throttling`, `RequestLimitExceeded`, ... | nothing was done | `TryAgainError` |
| no connection came about | nothing was sent | `TryAgainError` |
| `ConditionalCheckFailedException` | the row is another | `ConditionFailedError`, a conflict |
| `ResourceNotFoundException` | there is no such table | `NoStoreError` |
| `UnrecognizedClient`, `InvalidSignature`, `AccessDenied`, ..., no credentials | nothing was done | `StateError` |
| any other answer of status 4xx | nothing was done | `StateError` |
| status 5xx, no answer in time, a lost connection, half an answer | unknown | below |

*Unknown* means `OutcomeUnknownError` for a write, `TryAgainError` for a read. Meanings are those of
https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html; that a write which was
answered with a 5xx may have been done is said there, too.
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
        "ReplicatedWriteConflictException",  # another region of a strongly consistent global table
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
    """An answer was cut off."""


CAUGHT: Final = (exceptions.ClientError, exceptions.BotoCoreError, ResponseParserError, HalfAnswerError)
"""What the driver raises, and `check_whole`."""


def check_whole(response_dict: dict[str, Any], **_: object) -> None:
    """A hook that the driver calls before it parses a response.

    The driver itself takes a response that ends amid its headers for an empty one, that is, for an absent row, and
    an error whose JSON is incomplete for an unknown error.

    Raises:
        HalfAnswerError: the body is empty, which DynamoDB's never is; its checksum differs; or it is an error, and the
            beginning of a JSON object.
    """
    body, status = response_dict["body"], response_dict["status_code"]
    checksum = response_dict["headers"].get("x-amz-crc32")
    if (
        not body
        or (checksum and checksum != str(zlib.crc32(body)))
        or (status >= 400 and _is_half_object(body))  # of other responses, the driver notices it
    ):
        raise HalfAnswerError(f"an answer of status {status} was cut off")


def _is_half_object(body: bytes) -> bool:
    if not body.startswith(b"{"):
        return False  # not from DynamoDB, but perhaps from a proxy
    try:
        msgspec.json.decode(body)
    except msgspec.DecodeError:
        return True
    return False


class ConditionFailedError(Exception):
    """The condition of a write does not hold; `item` is the one found, if there is one."""

    def __init__(self, item: dict[str, Any] | None) -> None:
        super().__init__("the condition does not hold")
        self.item = item


class TableInUseError(StateError):
    """There is such a table already, or it is being made or deleted."""


def explained(where: str, operation: str, error: Exception, *, writes: bool) -> Exception:
    """What the driver's error means; the driver's text says nothing of secrets."""
    if isinstance(error, exceptions.ClientError):
        return _answered(where, operation, error, writes=writes)
    text = f"{where}: {operation} failed: {_line(str(error))}"
    if isinstance(error, _NO_CREDENTIALS):
        return StateError(f"{text}; give an access key, or run where the environment or the instance has one")
    if "certificate verify failed" in text.lower():
        return StateError(f"{text}; check the endpoint and the certificates that are trusted here")
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
        return StateError(f"{where} refused {operation} ({said}): grant what the page of databases lists")
    if 400 <= status < 500:
        return StateError(
            f"{where} refused {operation} ({said}); is it DynamoDB, and are its tables a store's?"
        )
    return _unknown(f"{where}: {operation} failed with status {status} ({said})", writes=writes)


def _unknown(text: str, *, writes: bool) -> PolarisError:
    if writes:
        return OutcomeUnknownError(f"{text}; it may or may not have happened")
    return TryAgainError(f"{text}; nothing was changed")


def _line(text: str) -> str:
    return text.partition("\n")[0][:300]
