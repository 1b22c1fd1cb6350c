"""Processes of the benchmark that send their requests to one process."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from benchmarks.catalogs import properties_of
from benchmarks.sending import Sender, receiving


def test_requests_are_answered_by_another_process_until_the_end_of_the_block(tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    with receiving(properties_of(tmp_path / "catalog", "never"), address):
        senders = [Sender(address) for _ in range(2)]
        body = json.dumps({"namespace": ["db"]})
        assert [one.request("POST", "v1/namespaces", body=body)[0] for one in senders] == [200, 409]
        for one in senders:
            one.close()
    assert not Path(address).exists()


def test_a_process_that_does_not_start_is_an_error_at_once(tmp_path: Path) -> None:
    begun = time.monotonic()
    with (
        pytest.raises(RuntimeError, match="did not start"),
        receiving(properties_of(tmp_path / "catalog", "never", "nosuch://store"), str(tmp_path / "socket")),
    ):
        pass
    assert time.monotonic() - begun < 50
