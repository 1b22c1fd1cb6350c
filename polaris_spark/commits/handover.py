"""When a process publishes its changes as an intent instead of committing them, and how it learns the outcome."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits.amendments import amend_row
from polaris_spark.commits.head_reader import HeadReader
from polaris_spark.commits.intent_rows import Outcomes
from polaris_spark.commits.intents import Intents, Published
from polaris_spark.commits.mailbox import Mailbox
from polaris_spark.commits.publication import read_head
from polaris_spark.commits.retry import Turns
from polaris_spark.commits.rows import Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import PolarisError
from polaris_spark.ids import unpack
from polaris_spark.store.objects import ObjectStore

MOST_OTHERS: Final = 3
"""Number of commits of other processes that may leave an intent undecided, before its process commits the changes
itself."""

LOOK_MS: Final = 25.0
"""Longest pause between two reads of the reference's row while this process waits for another one to commit, in
milliseconds."""

PART_MS: Final = 25.0
"""Longest time without a look whether an answer has come, in milliseconds."""

LEAST_WAIT_MS: Final = 0.001
"""A wait for intents ends when less than this time is left, in milliseconds: a rounding error of the clock's times."""

WITHDRAW_MS: Final = 5_000.0
"""Time limit for changing the reference's row while the database fails, in milliseconds."""


class Waited(NamedTuple):
    """The state that a process found after it waited for another process to commit its intent."""

    outcomes: Outcomes | None
    """The outcomes of the intent's changes (`Intents.outcomes`); None if it is not decided."""
    head: CommitReader | None
    """The head at which the intent is not decided; None if it is decided."""


class Handover:
    """Decides when this process hands its changes over to the process that commits next."""

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        heads: HeadReader,
        intents: Intents,
        turns: Turns,
        *,
        mailbox: Mailbox,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._store = store
        self._name = name
        self._heads = heads
        self._intents = intents
        self._turns = turns
        self._mailbox = mailbox
        self._clock = clock
        self._rng = rng

    def base_for_intent(self, *, lost: bool) -> CommitReader | None:
        """Return the head on which to apply changes for an intent, or None if this process is to commit next: others do
        not commit often, this process made the newest known commit, or it has no slot in the reference's row (`Slot`).

        Args:
            lost: whether another process just committed first. If so, and this process has no slot, add one by a swap
                of the row.
        """
        if not self._turns.crowded:
            return None
        known, leads = self._heads.known_or_forecast(), self._turns.is_leader
        others_committed = leads(known.head) and not self._turns.committed_recently
        if others_committed or self._turns.was_away:  # the slot may be gone
            known = self._heads.read()
        if leads(known.head):
            return None
        if not self._intents.use_slot_of(known.head) and lost:
            known = self._heads.adopt(self._amended(self._intents.registered, WITHDRAW_MS))
        return known if self._intents.use_slot_of(known.head) else None

    def yield_turn(self, deadline: float) -> None:
        """If it is the turn of other processes (`Decision.yields_to`), wait until another process commits, but not for
        long.

        Otherwise this process would commit first again and again, because it needs no time to read the head.

        Args:
            deadline: time at which to stop waiting, in milliseconds on the monotonic clock.
        """
        if not self._turns.yields:
            return
        newest = known = self._heads.known().head.commit
        end = min(deadline, self._clock.monotonic_ms() + self._turns.yield_ms())
        while newest == known and (left := end - self._clock.monotonic_ms()) > 0:
            self._clock.sleep_ms(min(left, self._turns.commit_ms, LOOK_MS))
            newest = self._heads.read().head.commit
        self._turns.yielded(newest)

    def await_intents(self, deadline: float, *, changes: int) -> None:
        """Wait a short time for the intents of others, before this process commits. Do not wait for messages if most of
        them have arrived. Wait for intents in the database only if this process made the newest commit.

        Args:
            deadline: time at which to stop waiting, in milliseconds on the monotonic clock.
            changes: number of changes of this process that wait. It does not wait for fewer intents in the database.
        """
        head, now = self._heads.known().head, self._clock.monotonic_ms()
        near = [slot.following for slot in head.slots if self._mailbox.is_near(unpack(slot.following).node)]
        for_messages = for_rows = now
        if near:
            for_messages += self._turns.courtesy_ms()
        expected = self._intents.expected(head)
        if expected >= max(1, changes, len(near)) and self._turns.is_leader(head):
            # They read the row, and perhaps the answer, one after the other.
            write_ms = self._turns.commit_ms / (1 if self._store.backend.transactional else 2)
            for_rows += self._turns.written_courtesy_ms(2 * self._intents.read_ms, write_ms)
        while True:
            most = 2 * len(self._mailbox.received(near)) >= len(near)
            left = min(deadline, for_rows if most else max(for_messages, for_rows))
            left -= self._clock.monotonic_ms()
            if left < LEAST_WAIT_MS:
                return
            self._mailbox.wait(left)

    def wait(self, published: Published, deadline: float, *, only_look: bool) -> Waited:
        """Wait until a commit decides a published intent. Give up if no process commits for some time, if commits leave
        the intent undecided, or at `deadline` (milliseconds on the monotonic clock).

        Args:
            only_look: whether to give up at once if the intent is not decided.
        """
        base, slots = published.state.base.head, len(published.state.base.head.slots)
        patience, made_by = self._turns.patience(slots), unpack(base.commit).node
        begun = since = self._clock.monotonic_ms()
        seen = others = looks = 0
        while True:
            answer = self._intents.answer(published)
            if answer is None and not only_look:
                sent = not self._intents.written
                pause = self._turns.answer_ms(slots) if sent else self._turns.look_ms(looks, slots)
                left = min(since + patience, deadline) - self._clock.monotonic_ms()
                answer = self._await_answer(published, min(pause, left))
            looks += 1
            if answer is None:
                row, head = self._looked()
                answer = self._intents.answer(
                    published
                )  # it may have come meanwhile, and needs no further reads
            row, head, outcomes = answer or (row, head, self._intents.outcomes(published, head))
            now = self._clock.monotonic_ms()
            if outcomes is not None:
                self._turns.handed_over(None if only_look else now - begun)
                self._intents.note_outcomes(published, outcomes)
                contained = bool(outcomes) and all(done is True for done in outcomes)
                if published.is_request:
                    contained = all(outcomes) and self._intents.sends_requests
                contained = contained and self._heads.forecast(published.state, head)
                if not contained and (answer is None or self._heads.is_later(head)):
                    with suppress(PolarisError):  # the next change reads the head again
                        self._heads.adopt(row)
                return Waited(outcomes, None)
            if seen != head.commit:
                others += seen != 0
                if seen or head.commit != base.commit:
                    since = now
                seen = head.commit
                if not only_look and (unpack(seen).node != made_by or others > 1):
                    made_by = unpack(seen).node
                    self._intents.publish(published, head, write=others > 1)
            if only_look or others > MOST_OTHERS or now >= min(since + patience, deadline):
                if not only_look and head.commit == base.commit:
                    self._turns.waited_in_vain()
                return Waited(None, self._heads.adopt(row))

    def _await_answer(self, published: Published, ms: float) -> tuple[ReferenceRow, Head, Outcomes] | None:
        """Wait for the answer to a published intent, and return it (`Intents.answer`). Return None after `ms`
        milliseconds, or if another message came first.

        The wait has short parts, because another thread of this process may receive the answer.
        """
        end = self._clock.monotonic_ms() + ms
        while (begun := self._clock.monotonic_ms()) < end:
            part = min(end - begun, PART_MS)
            self._mailbox.wait(part)
            answer = self._intents.answer(published)
            if answer is not None or self._clock.monotonic_ms() < begun + part:
                return answer
        return None

    def _looked(self) -> tuple[ReferenceRow, Head]:
        """Read the reference's row, and return it and its head."""
        begun = self._clock.monotonic_ms()
        found = self._heads.row()
        self._turns.looked(self._clock.monotonic_ms() - begun)
        return found

    def withdraw(self, published: Published, limit_ms: float) -> Outcomes | None:
        """Make sure that no later commit decides a published intent. Return the outcomes of its changes if a commit
        decided it before, or None.

        Args:
            limit_ms: time limit while the database fails, in milliseconds, but at least `WITHDRAW_MS`.
        Raises:
            ReferenceGoneError: the row is missing.
            TryAgainError, OutcomeUnknownError: the database failed; the intent may still be decided.
        """
        removed = False

        def without(head: Head) -> Head:
            nonlocal removed
            after = self._intents.withdrawn(published, head)
            removed = after is not head
            return after

        row = self._amended(without, max(WITHDRAW_MS, limit_ms))
        return None if removed else self._intents.outcomes(published, read_head(row, self._name))

    def _amended(self, change: Callable[[Head], Head], limit_ms: float) -> ReferenceRow:
        backend, realm = self._store.backend, self._store.realm
        return amend_row(
            backend, realm, self._name, change, clock=self._clock, deadline_ms=limit_ms, rng=self._rng
        )
