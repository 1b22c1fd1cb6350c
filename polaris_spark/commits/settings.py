"""Settings of the commit protocol, and the interface for writing metadata files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

OPERATIONS = "operations"
"""Name of the index that records recent operation ids. Any reference may have it."""

PROTECTION = "protection"
"""Name of the index that says whether a branch is protected (`State.is_protected`), and has its checks
(`catalog.branches.checks`). Releases that do not know it keep it, but do not refuse changes."""

PROTECTED = b"protected"
"""Key of the index `PROTECTION`. Its value begins with 1 if the branch is protected, else with 0."""


class FileWriter(Protocol):
    """Writer of metadata files. Thread-safe."""

    def write_all(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Write files, given as (location, content), and replace existing files.

        When this returns, other processes can read the files.
        """
        ...


class CommitSettings(NamedTuple):
    """Settings of the commit protocol."""

    quotas: dict[str, int]
    """Maximum number of bytes of an index that are stored in the commit itself, by name of the index. An index that is
    not listed has `default_quota`."""
    default_quota: int = 2_048
    operation_lifetime_ms: int = 30 * 60 * 1_000
    deadline_ms: float = 60_000.0
    """Default time limit of a commit, in milliseconds. After that, the caller gets `TryAgainError` or
    `OutcomeUnknownError`."""
    max_batch: int = 256
    """Maximum number of changes in one commit."""
    max_waiting: int = 10_000
    """Maximum number of changes of this process that wait for one reference. Further changes get `TryAgainError`."""
