"""The errors of this package for failures of the driver and the server. A single server does not cause most of them."""

from __future__ import annotations

import pytest
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    CursorNotFound,
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)

from polaris_spark.backends.mongodb import failures
from polaris_spark.errors import (
    OutcomeUnknownError,
    PolarisError,
    StateError,
    StorageFullError,
    StoreURIError,
    TryAgainError,
)

_WHERE = "mongodb://host/db"


def _not_primary(code: int) -> NotPrimaryError:
    return NotPrimaryError("not primary", {"code": code, "errmsg": "not primary"})


def _refused() -> AutoReconnect:
    error = AutoReconnect("host:27017: [Errno 111] Connection refused")
    error.__cause__ = ConnectionRefusedError(111, "Connection refused")
    return error


def _labelled() -> NetworkTimeout:
    error = NetworkTimeout("host:27017: timed out")
    error._add_error_label("SystemOverloadedError")
    return error


def _bulk(*codes: int, concern: bool = False) -> BulkWriteError:
    return BulkWriteError(
        {
            "writeErrors": [{"index": number, "code": code} for number, code in enumerate(codes)],
            "writeConcernErrors": [{"code": 64, "errmsg": "waiting for replication timed out"}]
            if concern
            else [],
        }
    )


_IN_DOUBT = [
    # Done by the primary, and not known to survive it.
    WriteConcernError("waiting for replication timed out", 64),
    WTimeoutError("waiting for replication timed out", 64),
    WriteConcernError("interrupted at shutdown", 11_600),
    WriteConcernError("not enough data-bearing nodes", 100),
    # The primary went away while it worked.
    _not_primary(189),
    _not_primary(91),
    _not_primary(11_600),
    _not_primary(11_602),
    # Nobody knows.
    AutoReconnect("host:27017: connection closed"),
    NetworkTimeout("host:27017: timed out"),
    ExecutionTimeout("operation exceeded time limit", 50),
    OperationFailure("operation exceeded time limit", 262),
    OperationFailure("could not reach the shard", 6),
    OperationFailure("socket exception", 9_001),
    OperationFailure("operation was interrupted", 11_601),
    OperationFailure("waiting for replication timed out", 64),
    PyMongoError("whatever it is"),
    _bulk(11_000, concern=True),
    _bulk(11_000, 91),
]
_NOT_DONE = [
    ServerSelectionTimeoutError("no primary"),
    WaitQueueTimeoutError("no connection in time"),
    _not_primary(10_107),
    _not_primary(13_435),
    _refused(),
    _labelled(),
    WriteError("write conflict", 112),
    OperationFailure("stale version", 13_388),
    OperationFailure("too many requests", 462),
    WriteError("a router found no primary", 10_107),
    CursorNotFound("cursor id 1 not found", 43),
    _bulk(112),
]


@pytest.mark.parametrize("error", _IN_DOUBT, ids=repr)
def test_an_operation_that_may_have_taken_effect_is_never_reported_as_certain(error: PyMongoError) -> None:
    assert type(failures.of_write(_WHERE, error)) is OutcomeUnknownError
    assert type(failures.of_read(_WHERE, error)) is TryAgainError


@pytest.mark.parametrize("error", _NOT_DONE, ids=repr)
def test_an_operation_that_certainly_did_nothing_can_be_tried_again(error: PyMongoError) -> None:
    assert type(failures.of_write(_WHERE, error)) is TryAgainError
    assert type(failures.of_read(_WHERE, error)) is TryAgainError


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OperationFailure("Authentication failed.", 18), StoreURIError, "store.password and authSource"),
        (OperationFailure("bad auth", 8_000), StoreURIError, "store.password and authSource"),
        (OperationFailure("not authorized on db", 13), StoreURIError, "readWrite"),
        (_bulk(13), StoreURIError, "readWrite"),
        (OperationFailure("out of disk space", 14_031), StorageFullError, "free space"),
        (ConfigurationError("the hostname does not exist"), StoreURIError, "cannot be opened"),
        (
            ServerSelectionTimeoutError("SSL handshake failed: CERTIFICATE_VERIFY_FAILED"),
            StoreURIError,
            "tlsCAFile",
        ),
        (InvalidOperation("cannot use a client after close"), StateError, "closed"),
        (OperationFailure("no such command", 59), StateError, "refused"),
    ],
)
def test_errors_that_an_operator_must_fix_name_the_remedy(
    error: PyMongoError, kind: type[PolarisError], words: str
) -> None:
    for told in (failures.of_read(_WHERE, error), failures.of_write(_WHERE, error)):
        assert type(told) is kind
        assert words in str(told)
        assert str(told).startswith((_WHERE, "the disk", "the store"))


def test_only_rows_that_exist_already_are_skipped() -> None:
    assert failures.only_duplicates(_bulk(11_000, 11_000))
    assert not failures.only_duplicates(_bulk(11_000, 112))
    assert not failures.only_duplicates(_bulk(11_000, concern=True))
    assert not failures.only_duplicates(_bulk())
