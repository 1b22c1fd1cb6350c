"""Amendments: changes to the row of a reference that add no commit, such as trimming the history or sealing the row
when the reference is dropped."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from polaris_spark.backends.base import Backend, ReferenceRow, Swapped
from polaris_spark.clock import Clock
from polaris_spark.commits.publication import encode_head, read_head
from polaris_spark.commits.retry import backoff_ms
from polaris_spark.commits.rows import Head
from polaris_spark.errors import OutcomeUnknownError, ReferenceGoneError, StorageFullError, TryAgainError
from polaris_spark.store.references import new_version

AT_ONCE = 3
"""Number of conflicts after each of which an amendment is repeated without a pause. More of them show that many
processes amend the row at the same time."""


def amend_row(
    backend: Backend,
    realm: str,
    name: str,
    change: Callable[[Head], Head],
    *,
    clock: Clock,
    deadline_ms: float,
    rng: random.Random | None = None,
) -> ReferenceRow:
    """Replace the head in a reference's row by `change(head)`, with a compare-and-swap, and return the row.

    No object is read, so this works even if the database has lost objects of the head. After a conflict with another
    writer, the swap is repeated without a deadline: the first times at once, on the row that the database returned.
    `retry.retried` is not used, because it would end these repetitions at a deadline, and would not remember that the
    outcome of an earlier swap is unknown.

    Args:
        change: returns the new head. It must be idempotent, because it is called again, perhaps on its own result,
            while the outcome of the swap is unknown. An error that it raises is passed on, and the row is not changed.
        deadline_ms: time limit for retries after errors of the database, in milliseconds.
    Returns:
        the row as it is now: with a new version, or unchanged if `change` returns the head unchanged.
    Raises:
        ReferenceGoneError: the row is missing.
        CorruptionError: the row's value cannot be decoded.
        TryAgainError: the database still raised this error at the deadline, or has no space left; the row was not
            changed.
        OutcomeUnknownError: the database still failed at the deadline; the swap may have taken place or may still take
            place.
    """
    rng = rng or random.Random()
    started = clock.monotonic_ms()
    attempt = 0
    doubt: OutcomeUnknownError | None = None  # a swap of the version `expected` may still happen
    expected = b""
    known: ReferenceRow | None = None
    while True:
        try:
            row, known = known or backend.read_reference(realm, name), None
            if row is None:
                raise ReferenceGoneError(f"reference {name!r} of realm {realm!r} does not exist")
            if row.version != expected:
                doubt, expected = None, row.version
            before = read_head(row, name)
            after = change(before)
            if after == before:
                return row
            new = ReferenceRow(new_version(), encode_head(after))
            outcome = backend.swap_reference(realm, name, row.version, new)
            if isinstance(outcome, Swapped):
                return new
            if attempt < AT_ONCE and outcome.current is not None:
                attempt, known = attempt + 1, outcome.current
                continue
        except OutcomeUnknownError as error:
            doubt = error
            if clock.monotonic_ms() - started > deadline_ms:
                raise
        except TryAgainError as error:
            if clock.monotonic_ms() - started > deadline_ms or (
                isinstance(error, StorageFullError) and doubt is None
            ):
                raise (doubt or error) from None
        attempt += 1
        clock.sleep_ms(backoff_ms(attempt, clock.monotonic_ms() - started, rng))


def insert_row(backend: Backend, realm: str, name: str, row: Callable[[], ReferenceRow]) -> None:
    """Insert the row of a reference, unless the row exists. The insertion is repeated while its outcome is unknown.

    Args:
        row: returns the row to insert; called before each insertion. An error that it raises is passed on.
    Raises:
        TryAgainError: the database failed; repeat the call.
        OutcomeUnknownError: the row could not be read, so it is not known whether the row exists.
    """
    while backend.read_reference(realm, name) is None:
        new = row()
        with contextlib.suppress(OutcomeUnknownError):  # the next read shows the outcome
            backend.insert_reference(realm, name, new)
