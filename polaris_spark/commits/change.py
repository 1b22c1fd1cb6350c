"""What a caller of the commit protocol writes: a change in two parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State

R = TypeVar("R")


class Operation(NamedTuple):
    """Who asks for what, so that asking twice does it once."""

    id: bytes
    """16 bytes of a UUIDv7, or empty: then the change is not protected against repetition by the client."""
    principal: str
    digest: bytes = b""
    """A hash of the request; the same id with another digest is refused."""

    @property
    def key(self) -> bytes:
        """Key in the index `operations`: time-ordered, since UUIDv7 begins with its milliseconds."""
        return self.id + self.principal.encode()

    @property
    def made_ms(self) -> int:
        """When its id was made by the client's clock, milliseconds since 1970."""
        return made_ms(self.id)


def made_ms(key: bytes) -> int:
    """The time in an operation's id, or in its key in the index: milliseconds since 1970 (RFC 9562, 5.7)."""
    return int.from_bytes(key[:6], "big")


class PrepareAgain(Exception):  # noqa: N818  # not an error: it asks for another round
    """Raised by `apply`: it needs what `prepare` did not read. The change is prepared again, on a fresh head."""


class Change(ABC, Generic[R]):
    """One change to one reference. `prepare` may do I/O; `apply` is pure and may run several times."""

    operation: Operation
    size: int = 1
    """About how many steps `apply` takes: one for each part of the request, such as an update or a column."""

    def prepare(self, view: State) -> object:
        """Fix times, uuids and locations; read files. What is read of `view` must still hold when applied."""
        return None

    @abstractmethod
    def apply(self, state: State, prepared: object) -> R:
        """Judge requirements and make the change on `state`; whatever is raised makes this change alone fail.

        A change of many steps calls `state.check_time()` at each step, and does not catch the errors that this raises.

        Raises:
            PrepareAgain: the change needs data that `prepare` did not read, or has taken too long.
        """

    @abstractmethod
    def repeat(self, state: State, entries: list[LogEntry]) -> R:
        """The answer once more, for an operation that was done before and left `entries` in the log."""
