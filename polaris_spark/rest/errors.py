"""Conversion of errors to the error model of the REST protocol. The status of the response tells a client what to do:

- 4xx: nothing was changed; correct the request, or after 409, load the table again and repeat the change;
- 429: too many logins failed; nothing was changed, wait as `Retry-After` says;
- 502: it is unknown whether the change was made. This status does not come from here: the JVM answers with it if the
  Python process died twice (`PythonSide.java`);
- 503: nothing was changed; send the request again;
- 504: it is unknown whether the change was made (Iceberg's clients then raise CommitStateUnknownException);
- 507: nothing was changed, and sending the request again does not help until the storage has space.
"""

from __future__ import annotations

import logging

from polaris_spark.errors import (
    BadRequestError,
    ClockError,
    HistoryReplacedError,
    InputError,
    OutcomeUnknownError,
    PolarisError,
    ReferenceGoneError,
    RequestError,
    StateError,
    StorageFullError,
    TooManyRequestsError,
    TryAgainError,
)
from polaris_spark.rest.messages import ErrorModel, ErrorResponse, encode
from polaris_spark.rest.request import Response, json_response

log = logging.getLogger("polaris_spark")

RETRY_AFTER_SECONDS = "1"

_STATUS: list[tuple[type[PolarisError], int, str]] = [
    (InputError, 400, "BadRequestException"),
    (ReferenceGoneError, 404, "NotFoundException"),
    (HistoryReplacedError, 409, "HistoryReplacedException"),
    (StateError, 400, "BadRequestException"),
    (ClockError, 503, "ServiceUnavailableException"),
    (StorageFullError, 507, "InsufficientStorageException"),
    (TryAgainError, 503, "ServiceUnavailableException"),
    (OutcomeUnknownError, 504, "CommitStateUnknownException"),
]


def response_of(error: Exception) -> Response:
    """Return the response for an error. An unexpected error gets status 500, and is logged with its traceback.

    The tracebacks of the error are removed (`strip`), because they would keep the request in memory.
    """
    status, type = 500, "InternalServerError"
    if isinstance(error, RequestError):
        status, type = error.status, error.type
    elif isinstance(error, RecursionError):
        return response_of(BadRequestError("the request is nested too deeply"))
    else:
        for cls, code, name in _STATUS:
            if isinstance(error, cls):
                status, type = code, name
                break
        else:
            log.error("request failed", exc_info=error)
    message = str(error) or error.__class__.__name__
    wait = str(error.retry_after) if isinstance(error, TooManyRequestsError) else RETRY_AFTER_SECONDS
    strip(error)
    response = json_response(encode(ErrorResponse(ErrorModel(message, type, status))), status)
    if status in (429, 503):
        return response._replace(headers={**response.headers, "Retry-After": wait})
    return response


def strip(error: BaseException) -> None:
    """Remove the tracebacks from an error and its causes.

    The frames of a traceback refer to everything that the request sent or read. An error that one thread passes to
    another is part of a reference cycle (error, traceback, frame, and the change that refers to the error). So the
    request's data would stay in memory until Python's garbage collector finds the cycle, which can take long in a
    server.
    """
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            errors += (one.__cause__, one.__context__)
