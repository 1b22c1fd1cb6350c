"""The S3 server of tests and benchmarks."""

from __future__ import annotations

import socket

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow
from polaris_spark.errors import StateError
from tests.servers.versitygw import VersityGateway
from tests.stores import start


def test_it_answers_on_loopback_keeps_its_files_when_killed_and_is_gone_afterwards() -> None:
    with start(VersityGateway) as server:
        backend = open_backend(server.uri("prefix"))
        backend.setup()
        backend.write_objects("realm", [ObjectRow(1, 0, b"kept")])
        server.kill()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", server.port)) != 0
        server.start()
        assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"kept"}
        backend.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0


def test_a_missing_toolchain_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StateError, match="no Go toolchain"):
        VersityGateway()
