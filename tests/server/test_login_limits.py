"""Limits on failed logins: how many are allowed, and that memory is bounded."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from polaris_spark.server.login_limits import REALMS_PER_ADDRESS, FailureLimit, LoginMemory, Remembered
from polaris_spark.server.logins import LoginLog


class Time:
    """A monotonic clock."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_some_failures_may_come_at_once_and_then_one_in_each_interval() -> None:
    time = Time()
    limit = FailureLimit(6, 60.0, time)
    for _ in range(6):
        assert limit.wait_seconds("ann") == 0
        limit.fail("ann")
    assert (limit.wait_seconds("ann"), limit.wait_seconds("bob")) == (10, 0)
    time.seconds += 4
    assert limit.wait_seconds("ann") == 6
    time.seconds += 6
    assert limit.wait_seconds("ann") == 0
    limit.fail("ann")
    assert limit.wait_seconds("ann") == 10
    time.seconds += 60
    for _ in range(6):
        assert limit.wait_seconds("ann") == 0
        limit.fail("ann")
    assert limit.wait_seconds("ann") == 10


def test_failures_beyond_the_limit_do_not_lengthen_the_wait() -> None:
    time = Time()
    limit = FailureLimit(6, 60.0, time)
    for _ in range(1_000):
        limit.fail("ann")
    assert limit.wait_seconds("ann") == 10


def test_no_limit_remembers_nothing() -> None:
    limit = FailureLimit(0, 60.0)
    for _ in range(100):
        limit.fail("ann")
    assert (limit.wait_seconds("ann"), len(limit)) == (0, 0)


def test_memory_is_bounded_and_the_latest_failures_are_kept() -> None:
    time = Time()
    limit, remembered = FailureLimit(1, 60.0, time, keys=10), Remembered[int](60.0, time, most=10)
    for number in range(100):
        limit.fail(number)
        remembered.put(str(number), number)
    assert (len(limit), len(remembered)) == (10, 10)
    assert [limit.wait_seconds(number) > 0 for number in (0, 89, 90, 99)] == [False, False, True, True]
    assert [remembered.get(str(number)) for number in (0, 89, 90, 99)] == [None, None, 90, 99]


def test_values_are_forgotten_in_time_and_secrets_are_not_kept() -> None:
    time = Time()
    remembered = Remembered[int](60.0, time)
    remembered.put("a secret", 5)
    assert "a secret" not in repr(remembered.__dict__)
    time.seconds += 59.9
    assert remembered.get("a secret") == 5
    time.seconds += 0.1
    assert remembered.get("a secret") is None
    remembered.put("a secret", 6)
    remembered.forget("a secret")
    assert remembered.get("a secret") is None


def test_the_login_log_and_the_files_that_it_replaces_are_readable_by_this_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        handler = LoginLog(tmp_path / "log", maxBytes=100, backupCount=2, encoding="utf-8")
        for number in range(5):
            handler.emit(logging.makeLogRecord({"msg": f"{number} " + "x" * 60}))
        handler.close()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"log": 0o600, "log.1": 0o600, "log.2": 0o600}


def test_a_key_of_any_size_needs_the_same_memory() -> None:
    limit = FailureLimit(6, 60.0, Time())
    for name in ("x", "x" * 100_000):
        limit.fail((name, "192.0.2.1"))
    assert {len(key) for key in limit._full_at} == {16}
    assert limit.wait_seconds(("x", "192.0.2.1")) == 0


def test_the_limit_of_an_address_in_all_realms_is_shared() -> None:
    served = LoginMemory(2)
    missing = LoginMemory(2, served.everywhere)
    for _ in range(2 * REALMS_PER_ADDRESS):
        missing.everywhere.fail("192.0.2.1")
    assert served.everywhere.wait_seconds("192.0.2.1") > 0
    assert served.everywhere.wait_seconds("192.0.2.2") == 0
