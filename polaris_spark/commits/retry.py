"""How long to wait before the next attempt."""

from __future__ import annotations

import random

BASE_MS = 2.0
CAP_MS = 400.0
PATIENCE_MS = 500.0
"""A change that has waited this long waits half as long as a new one, and so on: age buys priority."""


def backoff_ms(attempt: int, age_ms: float, rng: random.Random) -> float:
    """Milliseconds to wait before attempt number `attempt` (the first retry is 1) of a change `age_ms` old.

    Exponential backoff with full jitter ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015), divided by a
    weight that grows with age so that the oldest change tends to win and none starves.
    """
    ceiling = min(CAP_MS, BASE_MS * 2.0 ** min(attempt, 16))
    return rng.uniform(0, ceiling) / (1.0 + age_ms / PATIENCE_MS)
