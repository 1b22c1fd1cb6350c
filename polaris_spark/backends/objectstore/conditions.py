"""Does an object store decide conditional writes? Found out by trying."""

from __future__ import annotations

import contextlib
import os

from polaris_spark.backends.objectstore.requests import Requests
from polaris_spark.backends.objectstore.settings import Settings
from polaris_spark.errors import PolarisError, StoreURIError


def refuse_without_conditions(requests: Requests, settings: Settings) -> None:
    """Try every condition that the backend relies on, on an object of its own, unless this was done before.

    That it was done is noted in an object named after endpoint and bucket, so that a copy elsewhere is tried again.

    Raises:
        StoreURIError: a condition was ignored, or is unknown to the store.
    """
    noted = f"tested/{settings.place}"
    if requests.get(noted) is not None:
        return
    key = f"tested/probe-{os.urandom(16).hex()}"
    try:
        wrong = _first_wrong(requests, key)
    finally:
        with contextlib.suppress(PolarisError):  # a small object left behind does no harm
            requests.delete([key])
    if wrong:
        raise StoreURIError(
            f"{settings.where} cannot hold a catalog: it {wrong}; it takes a store that decides conditional writes "
            "(If-None-Match and If-Match of PUT), or a database"
        )
    requests.put(noted, b"conditional writes were tried and are decided\n")


def _first_wrong(requests: Requests, key: str) -> str:
    first = requests.put_if(key, b"1", None)
    if first is None:
        return "refused a new object under a condition that holds"
    if requests.put_if(key, b"2", None) is not None:
        return "replaced an object that was to be written only if there was none"
    got = requests.get(key)
    if got is None or got[0] != b"1" or not got[1]:
        return "did not return an object, or its ETag, right after it was written"
    second = requests.put_if(key, b"3", got[1])
    if second is None:
        return "refused to replace an object under a condition that holds"
    if requests.put_if(key, b"4", got[1]) is not None:
        return "replaced an object whose ETag was another than asked for"
    if requests.put_if(f"{key}-none", b"5", second) is not None:
        requests.delete([f"{key}-none"])
        return "wrote an object that was to be replaced only, and did not exist"
    return ""
