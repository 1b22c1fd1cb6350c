"""How the process that commits carries out the intents of other processes (`intents`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from polaris_spark.backends.base import ObjectKey, ReferenceRow
from polaris_spark.clock import FAR_MS, Clock
from polaris_spark.commits.applier import Applied, Applier, Decision, Redone
from polaris_spark.commits.change import Operation
from polaris_spark.commits.intent_rows import (
    APPLIED,
    REQUEST,
    Answer,
    Intent,
    Part,
    WrittenAnswer,
    decode_parts,
    encode,
    request_id,
)
from polaris_spark.commits.mailbox import Mailbox
from polaris_spark.commits.publication import Publication
from polaris_spark.commits.retry import Durations
from polaris_spark.commits.rows import ANSWER_BYTES, Slot
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from polaris_spark.ids import IdGenerator, id_time_ms, unpack
from polaris_spark.objects import ObjectRow, decode, refuse_newer
from polaris_spark.store.objects import ObjectStore

_logger = logging.getLogger(__name__)

LOOKS_EVERY: Final = 3
"""If a process usually sends its intents as messages, and none has arrived since its slot was replaced, the message may
be lost. One commit out of this number then looks for the intent in the database."""

LATE_MS: Final = FAR_MS
"""How long after a commit's time limit its intent is still carried out, in milliseconds. Older intents are ignored,
because their process has given up. The margin equals the largest tolerated clock error (`FAR_MS`), so that intents of a
machine whose clock is behind are still carried out."""

ANSWERED_COMMITS: Final = 2
"""Number of commits whose new objects an answer contains, if an object of the answered change points to them. The
receiver needs them to render its response, and has usually not read the commits of others."""

MOST_BYTES_OF_FURTHER_ROWS: Final = 32 * 2**10
"""Maximum size of these objects in an answer, in bytes. With more, the answer would not fit in a message."""

MOST_BYTES_OF_WRITTEN_ANSWER: Final = 16 * 2**10
"""Maximum size of the objects of an intent's requests for which an answer is written to the database, in bytes. These
objects are then written twice. The process that published an intent with larger ones reads them where they are."""

MOST_BYTES_OF_WRITTEN_ANSWERS: Final = 512 * 2**10
"""Maximum size of all answers that one commit writes, in bytes. The processes whose answers do not fit read the commit.
"""

MOST_BYTES_TOGETHER: Final = 2 * 2**20
"""Maximum size of all intents that one commit decides, in bytes. Intents that do not fit wait for the next commit.
"""


class Decider:
    """Carries out the intents of other processes in the commits of this one."""

    def __init__(
        self,
        store: ObjectStore,
        ids: IdGenerator,
        applier: Applier,
        mailbox: Mailbox,
        clock: Clock,
        deadline_ms: float,
    ) -> None:
        """
        Args:
            deadline_ms: time limit of a commit (`CommitSettings.deadline_ms`).
        """
        self._store = store
        self._ids = ids
        self._applier = applier
        self._mailbox = mailbox
        self._clock = clock
        self._lifetime_ms = deadline_ms + LATE_MS
        self.reads = Durations(0.0)
        """Durations of reads of intents from the database."""
        self._newest: tuple[dict[int, ObjectRow], ...] = ()
        """The rows of the last commits of this process that applied requests, by id."""

    def decided(self, applied: Applied, decision: Decision, slots: list[Slot]) -> Iterable[Slot]:
        """Carry out the intents of these slots, and yield the slots that the new head has instead."""
        if not slots:
            return
        found = self._mailbox.received(slot.following for slot in slots)
        following = applied.base.head.number + 1
        # The same commits for all slots: one read serves them all.
        looks = following % LOOKS_EVERY == 0
        far = [
            id
            for slot in slots
            if (id := slot.following) not in found
            and ((looks and following - slot.number > 1) or not self._mailbox.is_near(unpack(id).node))
        ]
        if far:
            begun = self._clock.monotonic_ms()
            rows = self._store.backend.read_objects(self._store.realm, [ObjectKey(id) for id in far])
            self.reads.add(self._clock.monotonic_ms() - begun)
            found |= {key.id: row for key, row in rows.items()}
        size = 0
        for slot in slots:
            row = found.get(slot.following)
            intent = None
            if row is not None and size + len(row) <= MOST_BYTES_TOGETHER:
                size += len(row)
                intent = self._intent(slot.following, row)
            yield slot if intent is None else self._carry(applied, decision, slot, *intent)

    def _intent(self, id: int, row: bytes) -> tuple[Intent, tuple[Part, ...]] | None:
        """Decode an intent and its parts. Return None if this release cannot."""
        try:
            found = decode(row, self._store.key(id))
            refuse_newer(found.header, self._store.key(id))
            if isinstance(found.value, Intent):
                parts = decode_parts(found.value.parts)
                if encode(parts) == found.value.parts:  # otherwise, it has fields that are unknown here
                    return found.value, parts
        except Exception as error:  # whatever another process wrote, it must not harm this one
            _logger.warning("intent %s is ignored: %s", id, error)
        return None

    def _carry(
        self, applied: Applied, decision: Decision, slot: Slot, intent: Intent, parts: tuple[Part, ...]
    ) -> Slot:
        decision.intents += 1
        number = applied.base.head.number + 1
        if self._clock.now_ms() - id_time_ms(intent.following) > self._lifetime_ms:  # its process is gone
            return Slot(intent.following, number, slot.following, bytes(len(parts)))
        node = unpack(slot.following).node
        if not parts:
            decision.yields_to.add(node)
        outcomes = bytearray()
        for position, part in enumerate(parts):
            operation = Operation(part.operation, part.principal, part.digest)
            done, redone = 0, Redone.LEFT_OUT
            applied.state.begin()  # `undo` must not undo an earlier change
            try:
                if part.entries:
                    redone = self._applier.redo(applied, operation, part.memo(intent.fence))
                if redone is Redone.MADE:
                    done = APPLIED
                    decision.rows += part.rows
                elif redone is Redone.LEFT_OUT and part.request:
                    id = request_id(slot.following, position)
                    rows = self._applier.apply_request(
                        applied, operation, part.request, id, encode=self._store.rows
                    )
                    if isinstance(rows, Redone):
                        redone = rows
                    else:
                        done, redone = REQUEST, Redone.MADE
                        decision.add_request(slot.following, position, applied.effects[-1].entries, rows)
            except (TryAgainError, OutcomeUnknownError):
                raise
            except Exception as error:  # its process commits it, or reports the error
                _logger.warning("a change of intent %s is left out: %s", slot.following, error)
                applied.state.undo()
                redone = Redone.LEFT_OUT
            outcomes.append(done)
            if redone is Redone.LEFT_OUT:
                decision.yields_to.add(node)
        if REQUEST in outcomes and not self._mailbox.is_near(node) and self._store.allows(WrittenAnswer):
            made = decision.requested[slot.following].values()
            if sum(len(row.value) for one in made for row in one.rows) <= MOST_BYTES_OF_WRITTEN_ANSWER:
                decision.answers[slot.following] = self._ids.next_id()
                outcomes += decision.answers[slot.following].to_bytes(ANSWER_BYTES, "big")
        return Slot(intent.following, number, slot.following, bytes(outcomes))

    def written_answers(self, decision: Decision, publication: Publication) -> list[ObjectRow]:
        """Return the rows of the answers that a commit writes, for processes that messages do not reach. `publication`
        has all other rows of the commit."""
        newest, size = self._with_rows_of(publication), 0
        rows: list[ObjectRow] = []
        for intent, id in decision.answers.items():
            made = self._store.rows(
                [(id, WrittenAnswer(encode(self._answer(intent, decision, newest, None))))]
            )
            size += sum(len(row.value) for row in made)
            if size > MOST_BYTES_OF_WRITTEN_ANSWERS:
                break
            rows += made
        return rows

    def answer(self, decision: Decision, publication: Publication) -> None:
        """Answer the processes whose intents this commit decided. If another process made the previous commit, also
        wake the processes that wait for it."""
        base, node = publication.base.head, unpack(publication.new.head.commit).node
        decided = [slot for slot in decision.slots if slot.number > base.number and slot.last]
        self._mailbox.remove(slot.last for slot in decided)
        answered = {node}
        if decision.requested:
            self._newest = self._with_rows_of(publication)
        for slot in decided:
            if self._mailbox.is_near(sender := unpack(slot.last).node):
                answer = self._answer(slot.last, decision, self._newest, publication.row)
                self._mailbox.answer(sender, slot.last, encode(answer))
                answered.add(sender)
        if unpack(base.commit).node != node:
            for sender in {unpack(slot.following).node for slot in decision.slots} - answered:
                self._mailbox.answer(sender, 0, b"")

    def _with_rows_of(self, publication: Publication) -> tuple[dict[int, ObjectRow], ...]:
        """Return `_newest` as it will be after this commit."""
        return (*self._newest, {row.id: row for row in publication.rows})[-ANSWERED_COMMITS:]

    def _answer(
        self,
        intent: int,
        decision: Decision,
        newest: tuple[dict[int, ObjectRow], ...],
        row: ReferenceRow | None,
    ) -> Answer:
        """Return the answer to an intent that a commit decided.

        Args:
            intent: id of the intent.
            newest: the rows of the last commits by id, those of this commit among them.
            row: the reference's new row; None to leave it out.
        """
        requested = decision.requested.get(intent, {})
        entries = {position: tuple(one.entries) for position, one in requested.items()}
        rows = {new.id: new for one in requested.values() for new in one.rows}
        decoded = (found for one in requested.values() for _, found, _ in one.rows.decoded)
        pointers = {id for one in decoded for id in one.header.strong if id not in rows}
        further = [rows_of_one[id] for rows_of_one in newest for id in pointers & rows_of_one.keys()]
        if sum(len(new.value) for new in further) <= MOST_BYTES_OF_FURTHER_ROWS:
            rows |= {new.id: new for new in further}
        return Answer(row, entries, tuple(rows.values()))
