"""A bound on how long something may take, and words for what it left out."""

from __future__ import annotations

import time


class Deadline:
    """So many seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def passed(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._end


def read_words(read: int, of: int, what: str, order: str) -> str:
    """How much was read, in words; `order` says which ones come first."""
    if read >= of:
        return f"All {of:,} {what} were read."
    return f"Time allowed for {read:,} of {of:,} {what} only, {order}: see --seconds."
