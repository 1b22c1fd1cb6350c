"""Check that the results of concurrent operations of several clients on one reference are linearizable.

A history is a set of operations, each with the times of its invocation and return. It is *linearizable* if the
operations can be put in an order with two properties (Herlihy and Wing, "Linearizability", 1990): an operation that
returned before another was invoked comes first, and a register with compare-and-swap gives the same results if it
executes the operations one after the other. The search for such an order is the algorithm of Wing and Gong (1993) with
Lowe's cache of visited states ("Testing for linearizability", 2017).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, Literal, NamedTuple

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ReferenceRow, Swapped
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.testing.waiting import PATIENCE_S

Kind = Literal["read", "insert", "swap", "delete"]

_NEVER: Final = 2**63


class Operation(NamedTuple):
    """An operation of a client on one reference, and its result. A version token identifies each row that is written;
    no token is used twice."""

    kind: Kind
    started_ns: int
    """Time of the invocation, in nanoseconds, by a clock that all clients share."""
    ended_ns: int | None
    """Time of the return, in nanoseconds by the same clock. None if the outcome is unknown: the operation may take
    effect at any later time, or never."""
    expected: bytes | None = None
    """Version token that a swap or delete expects; None for other kinds."""
    new: bytes | None = None
    """Version token that an insert or swap writes; None for other kinds."""
    found: bytes | None = None
    """For a read: the version token that was found; None if there was no row. For a conditional operation that changed
    nothing: the current version token; None if it was not reported."""
    took_place: bool | None = None
    """Whether a conditional operation reported that it made its change; None for reads and unknown outcomes."""


def linearizable(history: Sequence[Operation], first: bytes | None = None) -> bool:
    """Return whether the history is linearizable. `first` is the row's version token at the beginning; None: no row."""
    operations = sorted(history, key=lambda operation: operation.started_ns)
    certain = sum(1 << i for i, each in enumerate(operations) if each.ended_ns is not None)
    seen = {(0, first)}
    waiting = [(0, first)]
    while waiting:
        done, state = waiting.pop()
        if done & certain == certain:
            return True
        for i in _next(operations, done):
            possible, then = _apply(operations[i], state)
            place = (done | 1 << i, then)
            if possible and place not in seen:
                seen.add(place)
                waiting.append(place)
    return False


def record(backend: Backend, realm: str, name: str, seed: str, n: int) -> list[Operation]:
    """Execute `n` random operations of all kinds on one reference, and return the operations with their results.

    For some of the operations, the condition (such as the expected version) is deliberately not met. An operation that
    raised `TryAgainError` changed nothing; it is left out.

    Raises:
        TryAgainError: every operation of the last `PATIENCE_S` seconds raised this error.
    """
    rng = random.Random(seed)
    history: list[Operation] = []
    known: bytes | None = None
    end = time.monotonic() + PATIENCE_S
    while len(history) < n:
        operation = _draw(rng, known)
        started = time.monotonic_ns()
        try:
            known, told = _ask(backend, realm, name, operation)
        except TryAgainError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
            continue
        except OutcomeUnknownError:
            history.append(operation._replace(started_ns=started))
            known = None
            continue
        history.append(told._replace(started_ns=started, ended_ns=time.monotonic_ns()))
        end = time.monotonic() + PATIENCE_S
    return history


def record_of_store(uri: str, realm: str, name: str, seed: str, n: int) -> list[Operation]:
    """Open a store and call `record`. Meant to be run in another process."""
    with closing(open_backend(uri)) as backend:
        return record(backend, realm, name, seed, n)


def _next(operations: Sequence[Operation], done: int) -> Iterator[int]:
    """Yield the indexes of the operations that may come next in the order. `done` is a bit mask of the operations that
    the order already contains (called done here). An operation may not come next if it was invoked after the return of
    another operation that is not done.
    """
    end = _NEVER
    first = (~done & (done + 1)).bit_length() - 1  # index of the first operation that is not done
    for i in range(first, len(operations)):
        if operations[i].started_ns > end:
            return
        if not done >> i & 1:
            ended = operations[i].ended_ns
            end = min(end, _NEVER if ended is None else ended)
            yield i


def _apply(operation: Operation, state: bytes | None) -> tuple[bool, bytes | None]:
    """Execute an operation on a register that contains `state`. Return whether the register gives the operation's
    recorded result, and the state of the register afterwards."""
    if operation.kind == "read":
        return operation.found == state, state
    wanted = None if operation.kind == "insert" else operation.expected
    takes_place = state == wanted
    if operation.took_place is False and operation.found not in (None, state):
        return False, state
    if operation.took_place is not None and operation.took_place != takes_place:
        return False, state
    return True, operation.new if takes_place else state


def _draw(rng: random.Random, known: bytes | None) -> Operation:
    """Return a random operation. Its condition is met in most cases if `known` is the current version token."""
    chance = rng.random()
    new = os.urandom(16)
    if known is None:
        return Operation("insert" if chance < 0.5 else "read", 0, None, new=new if chance < 0.5 else None)
    if chance < 0.2:
        return Operation("delete", 0, None, expected=known)
    if chance < 0.3:
        return Operation("insert", 0, None, new=new)
    if chance < 0.5:
        return Operation("read", 0, None)
    expected = known if chance < 0.95 else os.urandom(16)
    return Operation("swap", 0, None, expected=expected, new=new)


def _ask(backend: Backend, realm: str, name: str, asked: Operation) -> tuple[bytes | None, Operation]:
    """Execute an operation. Return the version token that the row has after the operation, as far as the client knows
    (None: no row), and the operation with its result."""
    expected, new = asked.expected or b"", ReferenceRow(asked.new or b"", b"value")
    outcome: Swapped | Conflict
    if asked.kind == "read":
        row = backend.read_reference(realm, name)
        version = None if row is None else row.version
        return version, asked._replace(found=version)
    if asked.kind == "insert":
        outcome = backend.insert_reference(realm, name, new)
    elif asked.kind == "swap":
        outcome = backend.swap_reference(realm, name, expected, new)
    else:
        outcome = backend.delete_reference(realm, name, expected)
    if isinstance(outcome, Swapped):
        return asked.new, asked._replace(took_place=True)
    current = None if outcome.current is None else outcome.current.version
    return current, asked._replace(took_place=False, found=current)
