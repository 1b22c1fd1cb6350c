"""Group commit across processes: the process that commits next carries out the changes of others with its own. This
module publishes intents and finds out their outcomes; `decider` carries them out.

A process that competes with others for a reference applies its changes, and writes the outcome to an object: an
*intent*. The process that commits next reads the intents of the others. It includes every change whose reads still have
the same results (flat combining; Hendler, Incze, Shavit and Tzafrir, SPAA 2010). The process that published the intent
learns the outcome from an answer (`mailbox`), or watches the reference's row.

Each competing process has a `Slot` in the row, with the id of its next intent. A commit that decides an intent replaces
the slot, in the same swap. So each intent is decided at most once, and its changes are in force exactly if the commit
is. Intents only save time: every process may ignore them, die, or drop slots. A process whose intent is not decided
commits its changes itself, which replaces its slot as well. An intent that is older than the time limit of commits is
not carried out any more: its process is gone. No commit refers to intents, so sweeps delete them.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from polaris_spark.backends.base import ObjectKey, ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits import log
from polaris_spark.commits.applier import Applied, Applier, Decision
from polaris_spark.commits.decider import Decider
from polaris_spark.commits.group import Memo, Pending
from polaris_spark.commits.intent_rows import (
    APPLIED,
    REQUEST,
    Answer,
    Intent,
    Outcomes,
    Part,
    WrittenAnswer,
    decode_answer,
    encode,
    request_id,
)
from polaris_spark.commits.mailbox import Mailbox
from polaris_spark.commits.publication import Publication, read_head
from polaris_spark.commits.rows import ANSWER_BYTES, Commit, Entries, Head, LogEntry, Slot
from polaris_spark.commits.state import Point, Range, State, reading_state
from polaris_spark.errors import OutcomeUnknownError
from polaris_spark.ids import IdGenerator, unpack
from polaris_spark.objects import ObjectRow, decode
from polaris_spark.store.objects import ObjectRows, ObjectStore

_logger = logging.getLogger(__name__)

MOST_SLOTS: Final = 64
"""Maximum number of slots in a reference's row. Further processes commit only their own changes."""

SLOT_COMMITS: Final = 32
"""Number of commits after which a slot that its process does not use is dropped. A time would not do, because a process
may need its slot at any time. An intent has a time limit (`decider.LATE_MS`)."""

MOST_BYTES: Final = 256 * 2**10
"""Maximum size of an intent, in bytes. An intent fits in one row."""

MOST_BYTES_OF_REQUEST: Final = 32 * 2**10
"""Maximum size of a request in an intent, in bytes."""

MOST_REQUESTS: Final = 32
"""Maximum number of intents in a row that are only requests."""


class OutcomeTrimmedError(OutcomeUnknownError):
    """The outcome of an intent can no longer be found out."""


class Published(NamedTuple):
    """An intent of this process, and the data from which its changes get their results."""

    id: int
    intent: Intent
    base: int
    """Number of the commit that the changes were applied to."""
    parts: tuple[Part, ...]
    pendings: list[Pending]
    """The change of each part."""
    memos: list[Memo | None]
    """The outcome of each part; None if the part is only a request."""
    rows: ObjectRows
    """The rows of all parts."""
    state: State
    """The working state with the changes; without them if the parts are only requests."""

    @property
    def is_request(self) -> bool:
        """Whether this process sent only the requests for its changes, without applying them."""
        return None in self.memos

    @property
    def asks_for_turn(self) -> bool:
        """Whether the intent contains no changes, but asks the process that commits to let this one commit next."""
        return not self.parts

    @property
    def has_files(self) -> bool:
        """Whether files were written for the changes."""
        return any(memo is not None and memo.effects.files for memo in self.memos)


class Intents:
    """The intents of one reference: publishes those of this process, and decides those of others."""

    def __init__(
        self,
        store: ObjectStore,
        ids: IdGenerator,
        applier: Applier,
        mailbox: Mailbox,
        *,
        clock: Clock,
        deadline_ms: float,
    ) -> None:
        self._store = store
        self._mailbox = mailbox
        self._ids = ids
        self._decider = Decider(store, ids, applier, mailbox, clock, deadline_ms)
        self._own = 0
        """Id of this process's next intent, which its slot names; 0 if it has no slot, or if its intent is not decided.
        """
        self._abandoned = 0
        """Id of the last intent that was abandoned; 0 if none was."""
        self._requests = 0
        """Number of intents in a row that were only requests."""
        self.sends_requests = False
        """Whether to send only the requests for changes, because others applied the requests of the last intent. To
        apply the next changes here would probably be in vain, too."""
        self.written = False
        """Whether the newest intent of this process was written to the database."""
        self._process = os.getpid()

    @property
    def own(self) -> int:
        """Id of this process's next intent; 0 if it has no slot. A forked process does not inherit the slot."""
        if self._process != os.getpid():
            self._process, self._own = os.getpid(), 0
        return self._own

    # Publishing

    def draft(self, applied: Applied) -> Published | None:
        """Return a new intent with the applied changes, which is not written yet. Return None if the changes cannot be
        in an intent, or if this process has no slot in the head."""
        head = applied.base.head
        parts: list[Part] = []
        pendings: list[Pending] = []
        memos: list[Memo | None] = []
        rows = ObjectRows()
        for pending in applied.pendings:
            memo = pending.memo
            if pending.prepared_fence != head.fence:
                return None
            if memo is None or pending.must_prepare or pending.error is not None or not memo.effects:
                continue
            mine = self._store.rows(memo.effects.objects)
            part = _part(pending, memo, mine)
            if part is None or memo.fence != head.fence:
                return None
            parts.append(part)
            pendings.append(pending)
            memos.append(memo)
            rows += mine
            rows.decoded += mine.decoded
        if sum(len(part.request) for part in parts) > MOST_BYTES_OF_REQUEST:  # leave room for the effects
            parts = [msgspec.structs.replace(part, request=b"") for part in parts]
        return self._draft(applied.state, parts, pendings, memos, rows) if parts else None

    def draft_of_requests(self, state: State, pendings: Sequence[Pending]) -> Published | None:
        """Return a new intent with the requests for changes that this process does not apply. Return None if a change
        has no request, was already applied, or was slow, if two changes have the same operation, or if this process has
        no slot in the head.

        Args:
            state: working state without the changes.
        """
        parts, operations = [], set()
        for pending in pendings:
            request, operation = _request_of(pending), pending.change.operation
            if pending.memo is not None or pending.refused is not None or pending.slow:
                return None
            if not request or (operation.id and operation.key in operations):
                return None
            operations.add(operation.key)
            parts.append(
                Part(operation.id, operation.principal, operation.digest, (), (), (), (), (), request)
            )
        return self._draft(state, parts, list(pendings), [None] * len(parts), ObjectRows())

    def draft_for_turn(self, state: State) -> Published | None:
        """Return a new intent without changes. It asks the process that commits to wait until this process has
        committed. A process sends it if its own changes cannot be part of an intent. Return None if this process has
        no slot in the head."""
        return self._draft(state, [], [], [], ObjectRows())

    def _draft(
        self,
        state: State,
        parts: list[Part],
        pendings: list[Pending],
        memos: list[Memo | None],
        rows: ObjectRows,
    ) -> Published | None:
        head = state.base.head
        if not self._has_slot(head):
            return None
        intent = Intent(head.fence, self._ids.next_id(), encode(parts))
        if len(intent.parts) > MOST_BYTES:
            return None
        return Published(self.own, intent, head.number, tuple(parts), pendings, memos, rows, state)

    def publish(self, published: Published, head: Head, *, write: bool = False) -> None:
        """Send an intent to the process that made the newest commit, or write it to the database. From the start of
        this call on, other processes may carry it out. May be repeated, if another process made a commit.

        Args:
            write: whether to write it in any case, because the message may have been lost.
        Raises:
            TryAgainError, OutcomeUnknownError: the database failed; the intent may have been written.
        """
        if self._own:
            self._own, self.written = 0, False
        if self.written:
            return
        rows = self._store.rows([(published.id, published.intent)])
        self._mailbox.open()
        node = unpack(head.commit).node
        if write or not self._mailbox.send(node, published.id, rows[0].value):
            self._store.backend.write_objects(self._store.realm, rows)
            self.written = True
            self._mailbox.send(node, published.id, b"")

    def answer(self, published: Published) -> tuple[ReferenceRow, Head, Outcomes] | None:
        """Return what another process sent when it had decided a published intent: the reference's row, its head, and
        the outcomes of the intent's changes. Return None if nothing usable came."""
        message = self._mailbox.take_answer(published.id)
        if message is None:
            return None
        try:
            answer = decode_answer(message)
            if answer.row is None:
                raise ValueError("the answer has no row")
            head = read_head(answer.row, published.state.base.row_name)
            slot = next(slot for slot in head.slots if slot.last == published.id)
        except Exception as error:  # whatever another process sent
            _logger.warning("an answer to intent %s is ignored: %s", published.id, error)
            return None
        outcomes = self._answered(published, slot, answer)
        return None if outcomes is None else (answer.row, head, outcomes)

    def _answered(self, published: Published, slot: Slot, answer: Answer) -> Outcomes | None:
        """Return the outcomes of a published intent's changes according to its slot and an answer, and remember the
        objects in the answer. Return None if they do not fit together."""
        outcomes: list[bool | list[LogEntry]] = []
        try:
            for position, done in enumerate(slot.outcomes[: len(published.parts)]):
                outcomes.append(list(answer.entries[position]) if done == REQUEST else done == APPLIED)
            rows = self._store.decoded(answer.rows)
        except Exception as error:  # whatever another process sent
            _logger.warning("an answer to intent %s is ignored: %s", published.id, error)
            return None
        if len(outcomes) != len(published.parts) or [] in outcomes:
            return None
        self._store.remember(rows)
        return outcomes

    def _written_answer(self, published: Published, slot: Slot) -> Outcomes | None:
        """Return the outcomes of a published intent's changes according to the answer that was written to the database.
        Return None if there is none that this process can use."""
        id = slot.answer(len(published.parts))
        if not id:
            return None
        key = ObjectKey(id)
        row = self._store.backend.read_objects(self._store.realm, [key]).get(key)
        if row is None:
            return None
        try:
            found = decode(row, self._store.key(id)).value
            if not isinstance(found, WrittenAnswer):
                raise ValueError("the object is not an answer")
            answer = decode_answer(found.answer)
        except Exception as error:  # whatever another process wrote
            _logger.warning("the answer to intent %s is ignored: %s", published.id, error)
            return None
        return self._answered(published, slot, answer)

    def outcomes(self, published: Published, head: Head) -> Outcomes | None:
        """Return the outcomes of a published intent's changes at a head. Return None if the intent is not decided.

        Raises:
            OutcomeTrimmedError: the slot was dropped, and the commits that may contain the changes were trimmed; or the
                slot is damaged.
        """
        if published.asks_for_turn:
            return None if any(slot.following == published.id for slot in head.slots) else []
        for slot in head.slots:
            if slot.last == published.id:
                changes = len(published.parts)
                if len(slot.outcomes) not in (changes, changes + ANSWER_BYTES):
                    raise OutcomeTrimmedError(
                        f"it is not known whether the change was made: {slot} is damaged"
                    )
                outcomes = slot.outcomes[:changes]
                if REQUEST not in outcomes:
                    return [done == APPLIED for done in outcomes]
                answered = self._written_answer(published, slot)
                if answered is not None:
                    return answered
                found = self._found(published, self._entries_of(head, slot.number))
                if any(done == REQUEST and not one for done, one in zip(outcomes, found, strict=True)):
                    raise OutcomeTrimmedError(
                        "the change was made, but its log entries are not in the history"
                    )
                return [
                    one if done == REQUEST else done == APPLIED
                    for done, one in zip(outcomes, found, strict=True)
                ]
            if slot.following == published.id:
                return None
        return self._searched(published, head)

    def _searched(self, published: Published, head: Head) -> Outcomes:
        """Return the outcomes of an intent whose slot was dropped: look for the log entries of its parts."""
        if head.given_up or head.floor_number > published.base + 1:
            raise OutcomeTrimmedError(
                "it is not known whether the change was made: the part of the history that would contain it was trimmed"
            )
        listed = itertools.takewhile(
            lambda one: one[1].number > published.base, log.entries(self._store, head)
        )
        return self._found(published, (entry for *_, entry in listed))

    def _entries_of(self, head: Head, number: int) -> Iterable[LogEntry]:
        """Return the log entries of a commit, newest first. Return none if the commit is no longer in the history."""
        if number < head.floor_number:
            return ()
        commit = self._store.get(log.ancestor(self._store, head, number), Commit)
        return reversed(self._store.get(commit.entries, Entries).entries)

    def _found(self, published: Published, entries: Iterable[LogEntry]) -> Outcomes:
        """Return the outcomes of an intent according to log entries, newest first."""
        applied = {
            encode(part.entries[0]): number for number, part in enumerate(published.parts) if part.entries
        }
        requested = {
            (part.operation or request_id(published.id, number), part.principal): number
            for number, part in enumerate(published.parts)
            if part.request
        }
        found: dict[int, list[LogEntry]] = {}
        for entry in entries:
            number = applied.get(encode(entry), -1)
            if number >= 0:
                found[number] = []
            else:
                number = requested.get((entry.operation, entry.principal), -1)
                if number >= 0:
                    found[number] = [entry, *found.get(number, [])]
        return [number in found and (found[number] or True) for number in range(len(published.parts))]

    def note_outcomes(self, published: Published, outcomes: Outcomes) -> None:
        """Decide by the outcomes of an intent whether to send only requests from now on. Now and then, a change is
        applied here again, to see whether requests are still useful."""
        self._requests = self._requests + 1 if published.is_request else 0
        were_requested = any(isinstance(done, list) for done in outcomes)
        self.sends_requests = were_requested and self._requests < MOST_REQUESTS

    def settle(self, published: Published, outcomes: Outcomes) -> None:
        """Give each change of a published intent its result. Mark the changes that did not get into the reference, so
        that they are prepared again.

        Raises:
            TryAgainError, OutcomeUnknownError: the result of a change cannot be read now. Call `settle` again later.
        """
        state = reading_state(published.state.base)
        for pending, memo, done in zip(published.pendings, published.memos, outcomes, strict=True):
            if isinstance(done, list):
                pending.succeed(pending.change.repeat(state, done))
            elif done and memo is not None:
                pending.succeed(memo.result)
            pending.must_prepare, pending.contested, pending.answer_directly = not done, not done, False
        self._store.remember(published.rows)
        self._mailbox.take_answer(published.id)  # it may have come after a look at the row
        self._own = published.intent.following

    def abandon(self, published: Published) -> None:
        """Forget a published intent that contains no changes. The next commit of this process drops its slot."""
        self._abandoned = published.id

    def registered(self, head: Head) -> Head:
        """Return a head with a slot of this process, or `head` itself if there is no room for it."""
        if self._has_slot(head) or len(head.slots) >= MOST_SLOTS or head.sealed or head.move is not None:
            return head
        self._mailbox.open()
        self._own = self._own or self._ids.next_id()
        return msgspec.structs.replace(head, slots=(*head.slots, Slot(self._own, head.number)))

    def use_slot_of(self, head: Head) -> bool:
        """Whether a head has the slot of this process. If not, the slot was dropped, and is forgotten."""
        if not self._has_slot(head):
            self._own = 0
        return self._own != 0

    def _has_slot(self, head: Head) -> bool:
        own = self.own
        return own != 0 and own in [slot.following for slot in head.slots]

    def withdrawn(self, published: Published, head: Head) -> Head:
        """Return a head in which a published intent can no longer be carried out. If it is decided already, return
        `head` itself."""
        kept = tuple(slot for slot in head.slots if slot.following != published.id)
        return (
            head if head.sealed or len(kept) == len(head.slots) else msgspec.structs.replace(head, slots=kept)
        )

    # Deciding

    def written_answers(self, decision: Decision, publication: Publication) -> list[ObjectRow]:
        """Return the rows of the answers that a commit writes (`Decider.written_answers`)."""
        return self._decider.written_answers(decision, publication)

    def decide(self, applied: Applied, published: Published | None, *, competing: bool) -> None:
        """Carry out the intents of other processes on top of the applied changes, and set the slots of the new head.

        Args:
            published: this process's intent with the same changes, if it was published; the commit decides it as well.
            competing: whether this process competes with others, and so needs a slot.
        """
        decision = applied.decision = Decision()
        head, own = applied.base.head, self.own or (0 if published is None else published.id)
        slots = [slot for slot in head.slots if head.number - slot.number <= SLOT_COMMITS]
        others = [slot for slot in slots if slot.following not in (own, self._abandoned)]
        decision.slots = tuple(self._decider.decided(applied, decision, others))
        if (competing or decision.slots) and len(decision.slots) < MOST_SLOTS:
            self._mailbox.open()
            decision.own_slot = own
            if not own or published is not None or all(slot.following != own for slot in slots):
                decision.own_slot = self._ids.next_id()
            decision.slots += (Slot(decision.own_slot, head.number + 1),)

    def expected(self, head: Head) -> int:
        """Return how many processes will probably write an intent to the database soon: those that messages do not
        reach, and whose last intents the commit of `head` decided."""
        return sum(
            1
            for slot in head.slots
            if slot.last
            and slot.number == head.number
            and not self._mailbox.is_near(unpack(slot.following).node)
        )

    @property
    def read_ms(self) -> float:
        """The usual duration of a read of intents from the database, in milliseconds."""
        return self._decider.reads.median_ms

    def committed(self, decision: Decision, publication: Publication) -> None:
        """Record that a commit took place, and answer the processes whose intents it decided."""
        self._own, self.sends_requests = decision.own_slot, False
        if decision.slots:
            self._decider.answer(decision, publication)


def _part(pending: Pending, memo: Memo, rows: ObjectRows) -> Part | None:
    """Return a change as a part of an intent, or None if it cannot be: a compaction, a merge, a change without log
    entry, or a change with reads that are neither `Point` nor `Range`."""
    reads = [*pending.prepared_reads, *memo.reads]
    points = tuple(read for read in reads if isinstance(read, Point))
    ranges = tuple(read for read in reads if isinstance(read, Range))
    effects, operation = memo.effects, pending.change.operation
    if effects.trees or effects.merged or not effects.entries or len(points) + len(ranges) < len(reads):
        return None
    return Part(
        operation.id,
        operation.principal,
        operation.digest,
        points,
        ranges,
        tuple(effects.puts),
        tuple(effects.entries),
        tuple(rows),
        _request_of(pending),
    )


def _request_of(pending: Pending) -> bytes:
    request = pending.change.as_request()
    return request if len(request) <= MOST_BYTES_OF_REQUEST else b""
