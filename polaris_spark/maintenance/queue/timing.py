"""When tasks are due."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from polaris_spark.errors import InputError, MissingLibraryError
from polaris_spark.maintenance.queue.rows import Timing
from polaris_spark.property_values import duration_text

LEAST_INTERVAL_MS: Final = 1_000
"""Minimum interval of a schedule, in milliseconds."""
LONGEST_MS: Final = 36_500 * 86_400_000
"""Maximum interval, jitter and delay of a task, in milliseconds, so that its times can be shown."""
LONGEST_CRON: Final = 200
"""Maximum length of a cron expression, in characters."""
FIRST_BACKOFF_MS: Final = 30_000
"""Time between the first and the second attempt, in milliseconds. Each further time is twice as long."""
LONGEST_BACKOFF_MS: Final = 3_600_000
"""Maximum time between two attempts, in milliseconds."""


def check_timing(timing: Timing) -> None:
    """Check the times of a schedule.

    Raises:
        InputError: an interval and a cron expression are both given or both missing, or the given one cannot be used.
        MissingLibraryError: there is a cron expression, and the library for them is not installed.
    """
    check_duration("every", timing.every_ms)
    check_duration("jitter", timing.jitter_ms)
    if bool(timing.every_ms) == bool(timing.cron):
        raise InputError("give either every, such as '6 h', or cron, such as '30 2 * * *'")
    if len(timing.cron) > LONGEST_CRON:
        raise InputError(f"cron has {len(timing.cron)} characters; the maximum is {LONGEST_CRON}")
    if timing.cron:
        next_due(timing, 0, 0)
    elif timing.every_ms < LEAST_INTERVAL_MS:
        raise InputError(f"the interval 'every' is {timing.every_ms} ms; it must be at least 1 s")


def check_duration(name: str, ms: int) -> None:
    """Refuse an interval, jitter or delay that is too long.

    Raises:
        InputError: the duration is longer than `LONGEST_MS`.
    """
    if ms > LONGEST_MS:
        raise InputError(
            f"{name} is {duration_text(ms)}; it must not be longer than {duration_text(LONGEST_MS)}"
        )


def next_due(timing: Timing, due_ms: int, now_ms: int) -> int:
    """Return the time of the first run after `now_ms`, without jitter, in milliseconds since 1970. Runs that were
    missed before now are left out.

    Args:
        due_ms: time of the last run according to the schedule, without jitter.
    Raises:
        InputError: the cron expression cannot be used.
        MissingLibraryError: the library for cron expressions is not installed.
    """
    if not timing.cron:
        missed = max(0, now_ms - due_ms) // timing.every_ms
        return due_ms + (missed + 1) * timing.every_ms
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise MissingLibraryError(
            "cron expressions need a library that is not installed: pip install 'polaris-spark[schedules]'"
        ) from error
    try:
        found = next(CronSim(timing.cron, datetime.fromtimestamp(now_ms / 1_000, timezone.utc)))
    except (CronSimError, StopIteration) as error:
        raise InputError(
            f"cron is {timing.cron[:200]!r}; write minute, hour, day, month and day of the week, such as '30 2 * * *'"
        ) from error
    return int(found.timestamp() * 1_000)


def backoff_ms(attempt: int, random: float) -> int:
    """Return the time until the next attempt, in milliseconds.

    Args:
        attempt: number of the attempt that has failed, counted from 1.
        random: number from 0 to 1 that makes the times of several tasks differ.
    """
    longest = min(LONGEST_BACKOFF_MS, FIRST_BACKOFF_MS << min(attempt - 1, 20))
    return int(longest * (0.5 + random / 2))
