"""A deadline, and a sentence that says how much was read before it."""

from __future__ import annotations

import time


class Deadline:
    """A deadline, `seconds` seconds after this object is created."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def passed(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._end


def read_words(read: int, of: int, what: str, order: str) -> str:
    """Return a sentence that says how many items were read.

    Args:
        read: number of items that were read.
        of: number of all items.
        what: plural noun for the items.
        order: description of the items that were read, if not all were read, such as `the newest ones`.
    """
    if read >= of:
        return f"All {of:,} {what} were read."
    return f"Only {read:,} of {of:,} {what} were read within the time limit (--seconds), {order}."
