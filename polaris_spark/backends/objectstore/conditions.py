"""Test of the conditional writes of an object store."""

from __future__ import annotations

import contextlib
import os

from polaris_spark.backends.objectstore.requests import Requests
from polaris_spark.backends.objectstore.settings import Settings
from polaris_spark.errors import PolarisError, StoreURIError


def refuse_without_conditions(requests: Requests, settings: Settings) -> None:
    """Test with a probe object whether the store implements every kind of conditional write that the backend needs.
    Skip the test if it was successful before.

    A successful test is recorded in an object whose key contains a digest of endpoint and bucket. So a copy of the
    store in another place is tested again.

    Raises:
        StoreURIError: the store ignores or does not support a condition.
    """
    noted = f"tested/{settings.place}"
    if requests.get(noted) is not None:
        return
    key = f"tested/probe-{os.urandom(16).hex()}"
    try:
        wrong = _first_wrong(requests, key)
    finally:
        with contextlib.suppress(PolarisError):  # a leftover probe object is small and harmless
            requests.delete([key])
    if wrong:
        raise StoreURIError(
            f"{settings.where} cannot hold a catalog: it {wrong}; use a service that supports conditional writes "
            "(If-None-Match and If-Match of PUT), or a database"
        )
    requests.put(noted, b"conditional writes were tried and are decided\n")


def _first_wrong(requests: Requests, key: str) -> str:
    first = requests.put_if(key, b"1", None)
    if first is None:
        return "refused to create an object although the condition was met"
    if requests.put_if(key, b"2", None) is not None:
        return "replaced an existing object although the condition (If-None-Match) was not met"
    got = requests.get(key)
    if got is None or got[0] != b"1" or not got[1]:
        return "did not return an object, or its ETag, right after it was written"
    second = requests.put_if(key, b"3", got[1])
    if second is None:
        return "refused to replace an object although the condition was met"
    if requests.put_if(key, b"4", got[1]) is not None:
        return "replaced an object although its ETag differed from the condition (If-Match)"
    if requests.put_if(f"{key}-none", b"5", second) is not None:
        requests.delete([f"{key}-none"])
        return "created an object although the condition (If-Match) required an existing one"
    return ""
