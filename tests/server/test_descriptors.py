"""Under a flood of connections, a server keeps file descriptors for its store, and its log stays small."""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import socket
from io import StringIO
from pathlib import Path

import pytest

from polaris_spark.cli.bounded_log import PER_MINUTE, BoundedHandler
from polaris_spark.errors import InputError
from polaris_spark.server import ConnectionBounds
from polaris_spark.testing.waiting import wait_until
from tests.server.servers import Remote, Server, options, refused_options

FEW_FILES = 256
THREADS = 4


@pytest.fixture
def hard_limit(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Replace the process's limits during a test. Return the list of limits; the last one is in force."""
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    return limits


def answers(server: Server) -> bool:
    """Whether a new connection is accepted, and answered."""
    try:
        return Remote(server.uri).raw("GET", "/v1/config")[0] == 200
    except OSError:
        return False


def test_a_server_with_few_descriptors_goes_on_committing_under_a_flood_of_connections(
    tmp_path: Path,
) -> None:
    bounds = ["--threads", str(THREADS), "--max-connections", "500", "--max-connections-per-address", "400"]
    store = f"sqlite://{tmp_path / 's.db'}"
    with Server(store, *options(tmp_path / "w", *bounds), files=FEW_FILES) as server:
        remote, sent = Remote(server.uri), {"Content-Type": "application/json"}
        assert remote.raw("POST", "/v1/namespaces", b'{"namespace": ["before"]}', sent)[0] == 200
        host, port = server.uri.removeprefix("http://").split(":")
        fds = Path(f"/proc/{server.process.pid}/fd")
        with contextlib.ExitStack() as flood:
            for _ in range(400):
                connection = flood.enter_context(socket.socket())
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.connect((host, int(port)))
            wait_until(lambda: "refused a connection from 127.0.0.1" in server.errors, "the bound is reached")
            assert len(list(fds.iterdir())) < FEW_FILES
            for number in range(5):
                body = json.dumps({"namespace": [f"n{number}"]}).encode()
                assert remote.raw("POST", "/v1/namespaces", body, sent)[0] == 200
        wait_until(lambda: answers(server), "others connect after the flood", every_s=0.05)
        assert server.stop() == 0
        assert "instead of 500 (--max-connections)" in server.errors
        assert server.errors.count("\n") < 3 * PER_MINUTE
        assert "Traceback" not in server.errors


def test_a_limit_with_too_few_descriptors_is_refused_at_the_start(hard_limit: list[tuple[int, int]]) -> None:
    hard_limit.append((100, 100))
    with pytest.raises(InputError, match=r"may open 100 files.*ulimit -n"):
        ConnectionBounds().within_descriptors(16)


def test_the_soft_limit_is_raised_as_far_as_is_needed(hard_limit: list[tuple[int, int]]) -> None:
    hard_limit.append((256, 1_000_000))
    assert ConnectionBounds().within_descriptors(16) == ConnectionBounds()
    assert 1_000 < hard_limit[-1][0] < 2_000
    assert hard_limit[-1][1] == 1_000_000


def test_bounds_follow_the_hard_limit(hard_limit: list[tuple[int, int]]) -> None:
    hard_limit.append((64, 400))
    bounds = ConnectionBounds().within_descriptors(4)
    assert bounds.all < 400 - 4
    assert bounds.per_address == bounds.all // 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--max-connections", "0"], "--max-connections is 0"),
        (["--max-connections-per-address", "-1"], "--max-connections-per-address is -1"),
        (["--max-memory", "1 MiB"], "at least four times --max-body"),
        (["--max-memory", "much"], "--max-memory"),
    ],
)
def test_impossible_bounds_are_refused(tmp_path: Path, arguments: list[str], told: str) -> None:
    assert told in refused_options(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w", *arguments))


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The time in seconds."""
    return Clock()


@pytest.fixture
def logged(clock: Clock) -> tuple[StringIO, logging.Logger]:
    """The text of a log, and the logger that writes it."""
    stream, logger = StringIO(), logging.Logger("test")
    logger.addHandler(BoundedHandler(stream, clock))
    return stream, logger


def test_a_log_reports_how_many_records_it_suppressed(
    logged: tuple[StringIO, logging.Logger], clock: Clock
) -> None:
    stream, logger = logged
    for number in range(1_000):
        logger.warning("refused %d", number)
    logger.warning("another kind")
    lines = stream.getvalue().splitlines()
    assert lines == [*(f"refused {number}" for number in range(PER_MINUTE)), "another kind"]
    clock.now += 60
    logger.warning("refused %d", 1_000)
    assert stream.getvalue().splitlines()[-2:] == [
        f"{1_000 - PER_MINUTE} more log records of this kind were suppressed: refused %d",
        "refused 1000",
    ]


def test_a_log_reports_suppressed_records_when_it_closes(logged: tuple[StringIO, logging.Logger]) -> None:
    stream, logger = logged
    for number in range(100):
        logger.error("failed %d", number)
    logger.handlers[0].close()
    assert stream.getvalue().splitlines()[PER_MINUTE:] == [
        "90 more log records of this kind were suppressed: failed %d"
    ]


def test_a_log_of_many_kinds_takes_bounded_memory(logged: tuple[StringIO, logging.Logger]) -> None:
    stream, logger = logged
    for number in range(5_000):
        logger.warning(f"made of {number}")
    [handler] = logger.handlers
    assert isinstance(handler, BoundedHandler)
    assert len(handler._windows) <= 1_000
    assert len(stream.getvalue().splitlines()) == 5_000


def test_errors_are_logged_while_the_process_may_open_no_file(tmp_path: Path) -> None:
    stream, logger = StringIO(), logging.Logger("test")
    logger.addHandler(BoundedHandler(stream))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        with pytest.raises(OSError, match="Too many open files"):
            (tmp_path / "x").open()
        logger.error("failed", exc_info=ValueError("why"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert stream.getvalue().splitlines() == ["failed", "ValueError: why"]
