"""The interface that callers of the commit protocol implement: a change in two parts, `prepare` and `apply`."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from polaris_spark.clock import Clock
from polaris_spark.commit_notes import Notes
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import State

P = TypeVar("P")
R = TypeVar("R")


class Operation(NamedTuple):
    """Identity of a client's request. A request that is sent twice with the same id is carried out once."""

    id: bytes
    """The 16 bytes of a UUIDv7. Empty if the client gave no id; a request that is sent twice may then be carried out
    twice."""
    principal: str
    digest: bytes = b""
    """Hash of the request. A request with an id that was used before and a different digest is refused."""
    notes: Notes = ()
    """The client's notes on the change, such as a message. Its log entries keep them (`polaris_spark.commit_notes`)."""

    @property
    def key(self) -> bytes:
        """Key in the index `operations`. Keys are ordered by time, because a UUIDv7 begins with its time."""
        return self.id + self.principal.encode()

    @property
    def made_ms(self) -> int:
        """Time at which the id was made, by the client's clock, in milliseconds since 1970."""
        return made_ms(self.id)


def made_ms(key: bytes) -> int:
    """Return the time in an operation's id, or in its index key, in milliseconds since 1970 (RFC 9562, 5.7)."""
    return int.from_bytes(key[:6], "big")


def new_operation_id(now_ms: int) -> bytes:
    """Return a new id of an operation: a UUIDv7 (RFC 9562, section 5.7).

    Args:
        now_ms: the time, in milliseconds since 1970.
    """
    random_bits = random.getrandbits(74)
    high, low = random_bits >> 62, random_bits & (2**62 - 1)
    return (now_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low).to_bytes(16, "big")


class PrepareAgain(Exception):  # noqa: N818  # not an error: it requests another preparation
    """Raised by `apply` if it needs data that `prepare` did not read. The change is prepared again, on a fresh head."""


class Change(ABC, Generic[P, R]):
    """One change to one reference, such as an update of a table. `prepare` may do I/O. `apply` may run several times.
    Therefore it reads only rows and changes only `state`; a rebased append may also read a manifest list.

    `P` is the type of the values that `prepare` returns and `apply` takes. `R` is the type of the result.
    """

    operation: Operation
    onto_protected: bool = False
    """Whether the change may be committed to a protected branch (`State.is_protected`): it is a merge, revert or
    cherry-pick, or it does not change what the branch contains."""
    from_elsewhere: bool = False
    """Whether the change can bring stored content to the reference that its head does not have, such as content of
    another branch or of an earlier commit. A sweep may delete such content until the change is committed."""
    reads_to_prepare: bool = True
    """Whether `prepare` reads from `view`."""
    size: int = 1
    """Approximate number of steps of `apply`: one for each part of the request, such as an update or a column."""

    @abstractmethod
    def prepare(self, view: State) -> P:
        """Do the work that needs I/O or is not repeatable: choose times, UUIDs and locations, and read files. A
        change that contains a whole transaction also writes files here. Return the values that `apply` needs.

        If data that was read from `view` has changed when `apply` runs, the change is prepared again.
        """

    @abstractmethod
    def apply(self, state: State, prepared: P) -> R:
        """Check the requirements of the request, make the change on `state`, and return the result.

        An error makes only this change of the batch fail. A change of many steps calls `state.check_time()` at each
        step, and must not catch the errors that this call raises.

        Raises:
            PrepareAgain: the change needs data that `prepare` did not read, or has taken too long.
        """

    def as_request(self) -> bytes:
        """Return the client's request in a form from which `from_request` makes an equal change in another process.
        Return an empty value if only this process can make the change."""
        return b""

    def from_request(self, request: bytes, operation: Operation) -> Change[Any, Any] | None:
        """Return a change for a request that `as_request` returned in another process. The change gets the settings of
        this change. Return None if the other process has other settings, because the outcome could then differ.

        Args:
            operation: operation of the other process's change.
        """
        return None

    @abstractmethod
    def repeat(self, state: State, entries: list[LogEntry]) -> R:
        """Return the result of this change, which was carried out before. It is rebuilt from the operation's log
        entries `entries`."""


class LoggedChange(Change[P, R]):
    """A change that has an action in the log."""

    action: str

    def record(
        self,
        state: State,
        now: int,
        entity_id: int,
        key: bytes,
        *,
        before: int = 0,
        after: int = 0,
        summary: Mapping[str, str] | None = None,
        old_key: bytes = b"",
        result: bytes = b"",
        principal: str | None = None,
    ) -> None:
        """Add a log entry for this change, with the notes of the operation.

        Args:
            now: time of the change, in milliseconds since 1970.
            key: key of the entity in its index.
            before: object id of the entity's content before the change; 0 if the change creates the entity.
            after: object id of the entity's content after the change; 0 if the change removes the entity.
            old_key: key of the entity before a rename.
            principal: the principal that the change is logged for, by default the principal of the operation.
        """
        operation = self.operation
        state.log(
            LogEntry(
                operation.id,
                principal or operation.principal,
                now,
                self.action,
                entity_id,
                key,
                before,
                after,
                {**(summary or {}), **dict(operation.notes)},
                result,
                old_key,
            )
        )


class ClockedChange(Change[int, R]):
    """A change whose `prepare` only returns the current time, in milliseconds since 1970."""

    def __init__(self, clock: Clock, operation: Operation) -> None:
        self.clock = clock
        self.operation = operation

    def prepare(self, view: State) -> int:
        return self.clock.now_ms()


class Unrepeated:
    """Base class of changes whose operations have no id, so that they are never recognized as repeated requests. It
    must be the first base class."""

    def repeat(self, state: State, entries: list[LogEntry]) -> Any:
        raise AssertionError("a change whose operation has no id is never a repeated request")
