"""The PostgreSQL server of tests and benchmarks."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

from polaris_spark.errors import StateError
from tests.servers import postgresql
from tests.servers.postgresql import PostgreSQL


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


def test_the_error_says_why_the_server_does_not_start() -> None:
    with pytest.raises(StateError, match="no_such_setting"):
        PostgreSQL({"no_such_setting": "1"})


def test_a_server_starts_from_programs_below_a_folder_that_only_root_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    bin = postgresql.programs()
    package = bin.parents[1]
    if package.name != postgresql._PACKAGE:
        pytest.skip("the programs of this machine do not belong to the package")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        shutil.copytree(package.parent / name, closed / name, symlinks=True)
    programs = closed / bin.relative_to(package.parent)
    with pytest.raises(PermissionError):
        subprocess.run([str(programs / "initdb"), "--version"], user=pwd.getpwnam("nobody").pw_uid)
    monkeypatch.setattr(postgresql, "programs", lambda: programs)
    with PostgreSQL() as server, psycopg.connect(server.database) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_folder_of_temporary_files_that_only_root_may_enter_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    with pytest.raises(StateError, match=f'could not access directory "{closed}.*Permission denied'):
        PostgreSQL()
    assert not any(closed.iterdir())


def test_programs_of_the_machine_that_another_user_cannot_run_are_named(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    (tmp_path / "bin").mkdir(mode=0o700)
    with pytest.raises(StateError, match="a folder above may be entered by root only"):
        postgresql.programs_for(65_534, tmp_path / "bin")
