"""Errors as the REST protocol's error model. What a client may do decides the status: 4xx nothing happened, 503 try
again, 504 the outcome is not known (Iceberg's clients then raise CommitStateUnknownException)."""

from __future__ import annotations

import logging

from polaris_spark.errors import (
    BadRequestError,
    ClockError,
    InputError,
    OutcomeUnknownError,
    PolarisError,
    RealmMovedError,
    RealmStateError,
    ReferenceGoneError,
    RequestError,
    StateError,
    TryAgainError,
)
from polaris_spark.rest.messages import ErrorModel, ErrorResponse, encode
from polaris_spark.rest.request import Response, json_response

log = logging.getLogger("polaris_spark")

_STATUS: list[tuple[type[PolarisError], int, str]] = [
    (InputError, 400, "BadRequestException"),
    (RealmMovedError, 400, "BadRequestException"),
    (RealmStateError, 404, "NotFoundException"),
    (ReferenceGoneError, 404, "NotFoundException"),
    (StateError, 400, "BadRequestException"),
    (ClockError, 503, "ServiceUnavailableException"),
    (TryAgainError, 503, "ServiceUnavailableException"),
    (OutcomeUnknownError, 504, "CommitStateUnknownException"),
]


def response_of(error: Exception) -> Response:
    """The response to an error; one that nobody foresaw is logged with its trace and answered as 500."""
    status, type = 500, "InternalServerError"
    if isinstance(error, RequestError):
        status, type = error.status, error.type
    elif isinstance(error, RecursionError):
        return response_of(BadRequestError("what was sent is nested too deeply"))
    else:
        for cls, code, name in _STATUS:
            if isinstance(error, cls):
                status, type = code, name
                break
        else:
            log.error("request failed", exc_info=error)
    message = str(error) or error.__class__.__name__
    return json_response(encode(ErrorResponse(ErrorModel(message, type, status))), status)
