"""Tunable behaviour of the protocol, and what it writes files with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

OPERATIONS = "operations"
"""Name of the index of recent operation ids; every reference may have it."""


class FileWriter(Protocol):
    """Writes metadata files; durable enough to be read by others once it returns. Thread-safe."""

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write (location, content) pairs, replacing what is there."""
        ...


class CommitSettings(NamedTuple):
    """Tunable behaviour of the protocol."""

    quotas: dict[str, int]
    """Bytes that each index may keep embedded in the commit; others have `default_quota`."""
    default_quota: int = 2_048
    operation_lifetime_ms: int = 30 * 60 * 1_000
    deadline_ms: float = 60_000.0
    """How long a caller waits, unless it says otherwise, before it is told to try again (or that the outcome is
    unknown)."""
    max_batch: int = 256
    """The most changes of one commit."""
    max_waiting: int = 10_000
    """The most changes of one process that wait for one reference; more are told to try again."""
