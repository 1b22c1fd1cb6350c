"""The PostgreSQL server of tests and benchmarks."""

from __future__ import annotations

import socket
from pathlib import Path

import psycopg
import pytest

from polaris_spark.errors import StateError
from polaris_spark.testing.servers.postgresql import PostgreSQL


def test_it_answers_on_loopback_and_is_gone_afterwards() -> None:
    with PostgreSQL({"work_mem": "5MB"}) as server:
        with psycopg.connect(server.database) as connection:
            query = "SELECT current_setting('work_mem'), current_setting('listen_addresses'), current_setting('fsync')"
            assert connection.execute(query).fetchone() == ("5MB", "127.0.0.1", "on")
            directory = connection.execute("SELECT current_setting('data_directory')").fetchone()
        port = server.port
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert directory is not None
    assert not Path(directory[0]).exists()


def test_why_it_does_not_start_is_told() -> None:
    with pytest.raises(StateError, match="no_such_setting"):
        PostgreSQL({"no_such_setting": "1"})
