"""Kills this process at one of its database operations."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, count
from typing import Any

import pytest

from polaris_spark.backends.base import Backend
from tests.stores import EMBEDDED, NETWORKED

OPERATIONS = (
    "read_objects",
    "write_objects",
    "delete_objects",
    "read_reference",
    "insert_reference",
    "swap_reference",
    "delete_reference",
    "write_and_swap",
)
"""The operations of a backend on rows."""

FILE_CHANGES = ("os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
"""Events of Python's audit hooks that change a folder; `os.remove` is also the event of `os.unlink`."""

STRIDE = 3
"""If `has_every_kill` is false for a database, processes are killed only before every `STRIDE`-th operation."""


def die_at(left: int, backends: Sequence[Backend], operations: Collection[str] = OPERATIONS) -> None:
    """Let this process be killed by SIGKILL immediately before the `left`-th operation from now on.

    A read that follows a read does not count, unless this process has added or removed a file by Python's own functions
    between them. Otherwise, both kills would leave the same state.

    Args:
        operations: the operations that count.
    """
    guard = threading.Lock()
    has_read = False

    def counting(once: Callable[..., object], *, reads: bool) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal left, has_read
            with guard:
                left -= not (reads and has_read)
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                has_read = reads
            return once(*arguments)

        return call

    def changing(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal has_read
        if event in FILE_CHANGES or (event == "open" and (arguments[2] or 0) & os.O_CREAT):
            has_read = False

    for backend in backends:
        for name in operations:
            vars(backend)[name] = counting(getattr(backend, name), reads=name.startswith("read_"))
    sys.addaudithook(changing)


def has_every_kill(scheme: str, config: pytest.Config) -> bool:
    """Return whether processes are killed before every operation on a database. This is so on embedded databases, and
    with the marker `exhaustive` on all databases."""
    return scheme in EMBEDDED or "exhaustive" in config.option.markexpr


def killed_before(scheme: str, config: pytest.Config) -> Iterator[int]:
    """Return the numbers of the operations on the database before which a process is killed: all of them, or the first
    one, and then every `STRIDE`-th one, beginning at a number that depends on the database."""
    if has_every_kill(scheme, config):
        return count(1)
    return chain([1], count(2 + NETWORKED.index(scheme) % STRIDE, STRIDE))
