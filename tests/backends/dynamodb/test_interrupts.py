"""Ctrl-C never leaks a connection of the process's pool."""

from __future__ import annotations

import threading
from typing import Any

from polaris_spark.backends.dynamodb.requests import Requests
from polaris_spark.backends.dynamodb.settings import Settings
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.processes import in_threads
from polaris_spark.testing.waiting import PATIENCE_S
from tests.backends.interrupts import interruptions

_CONNECTIONS = 2


class _Client:
    """A client that answers at once, or when all connections are in use."""

    def __init__(self) -> None:
        self._all_in = threading.Barrier(_CONNECTIONS, timeout=PATIENCE_S)

    def get_item(self) -> dict[str, Any]:
        return {}

    def scan(self) -> dict[str, Any]:
        self._all_in.wait()
        return {}


def test_a_request_that_is_interrupted_anywhere_gives_its_connection_back() -> None:
    options = {"connections": str(_CONNECTIONS), "timeout": f"{PATIENCE_S}s"}
    requests = Requests(Settings.parse(StoreURI.parse("dynamodb://eu-central-1/polaris"), options))
    requests._client = _Client()
    kept = []
    for interrupt in interruptions(lambda: requests.read("get_item")):
        kept.append(interrupt)
        assert in_threads(_CONNECTIONS, lambda _: requests.read("scan")) == [{}] * _CONNECTIONS
    assert len(kept) > 10
