"""Execution of a recovery plan.

| step | purpose | after a crash right after this step |
| --- | --- | --- |
| 1. end all leases of node numbers | no id is made twice | nothing else has changed |
| 2. give every row a fresh version and a fence | attempts begun earlier cannot commit | nothing else has changed |
| 3. set the registry to a complete commit | the other references are found through it | run the recovery again |
| 4. add lost registrations and drops to the registry | it lists every reference | run the recovery again |
| 5. set the other references to complete commits | they can be used | run the recovery again for the references left |

Step 5 sets each reference by one swap. The swap adds a commit whose parent is the complete commit, so that the
reference's log records the recovery. The numbers of lost commits are used again, but ids never are. A process that does
not know whether its commit took place looks for the commit's id at the commit's number. If the commit was lost, the
process finds that it did not take place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from polaris_spark.backends.base import ReferenceRow
from polaris_spark.clock import Clock
from polaris_spark.commits.amendments import amend_row
from polaris_spark.commits.applier import Applied
from polaris_spark.commits.builder import Builder, Built
from polaris_spark.commits.change import ClockedChange, Operation
from polaris_spark.commits.committer import Committer
from polaris_spark.commits.publication import Outcome, Publication, encode_head
from polaris_spark.commits.retry import DEADLINE_MS, retried
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.commits.settings import CommitSettings
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import OutcomeUnknownError, StateError, TryAgainError
from polaris_spark.ids import IdGenerator, IdParts, pack
from polaris_spark.index import Entry
from polaris_spark.store.objects import ObjectStore
from polaris_spark.store.references import new_version
from polaris_spark.system.leases import start_over
from polaris_spark.system.recovery.plan import RecoveryStep
from polaris_spark.system.registry import REFERENCES, ROOT, Registration, encode_registration

ACTION = "recover"
"""Value of `LogEntry.action` in the log entries that a recovery writes."""


class Recovered(NamedTuple):
    """Result of a recovery."""

    ids_from_ms: int
    """Ids that are made after the recovery contain at least this time, in milliseconds since 1970."""
    heads: dict[str, Head]
    """The heads that were set, by row name."""


class Recovery:
    """Carries out a recovery plan."""

    def __init__(self, store: ObjectStore, *, ids: IdGenerator, clock: Clock, principal: str) -> None:
        """
        Args:
            store: the realm's objects.
            principal: user who runs the recovery, for the log.
        """
        self._store = store
        self._backend = store.backend
        self._ids = ids
        self._clock = clock
        self._principal = principal

    def carry_out(self, steps: Sequence[RecoveryStep], highest_id: int) -> Recovered:
        """Execute a plan. If this is interrupted, make a new survey and a new plan, and execute the new plan.

        Args:
            steps: the registry's step, followed by the steps of the references to recover.
            highest_id: `Survey.highest_id`, the highest id that is known to be in use.
        Raises:
            StateError: the registry cannot be recovered, or another process changed a reference since the survey.
        """
        if steps[0].action == "leave":
            raise StateError(
                "no remaining commit of the registry is complete: restore a backup of the database"
            )
        ids_from = start_over(self._backend, self._clock, highest_id)
        self._ids.observe(pack(IdParts(ids_from, 0, 0)))
        fence = self._ids.next_id()
        rows = {
            step.found.row_name: self._fence(step, fence) for step in steps if step.found.head is not None
        }
        heads: dict[str, Head] = {}
        for step in steps:
            if step.action in ("set", "insert"):
                heads[step.found.row_name] = self._go_on(step, rows.get(step.found.row_name), fence)
            if step.action == "give-up":
                self._amend(step, lambda head: msgspec.structs.replace(head, sealed=True))
            if step.found.name == ROOT:
                self._tell_registry(steps)
        return Recovered(ids_from, heads)

    def _fence(self, step: RecoveryStep, fence: int) -> ReferenceRow:
        return self._amend(step, lambda head: msgspec.structs.replace(head, fence=max(head.fence, fence)))

    def _amend(self, step: RecoveryStep, change: Callable[[Head], Head]) -> ReferenceRow:
        """Change the head in a reference's row by `change`, without a commit, and return the new row.

        Raises:
            StateError: another process has changed the row since the survey.
        """
        found = step.found
        assert found.head is not None
        expected = {found.head.commit} | ({step.head.commit} if step.head else set())

        def checked(head: Head) -> Head:
            if head.commit not in expected:
                raise _moved(found.name)
            return change(head)

        return amend_row(
            self._backend,
            self._store.realm,
            found.row_name,
            checked,
            clock=self._clock,
            deadline_ms=DEADLINE_MS,
        )

    def _go_on(self, step: RecoveryStep, row: ReferenceRow | None, fence: int) -> Head:
        found, head = step.found, step.head
        assert head is not None
        head = msgspec.structs.replace(head, fence=max(head.fence, fence))
        if head.sealed:  # a sealed row takes no commits, so the registry's log records the recovery
            self._amend(step, lambda _: head)
            return head
        if row is None and found.registered is not None and found.registered.source == head.commit:
            self._insert(step, head)  # like any process that finds the row of a new reference missing
            return head
        version = b"" if row is None else row.version
        base = CommitReader(self._store, version, head, self._store.get(head.commit, Commit))
        new, objects = self._built(base, step)
        if row is None:
            retried(self._clock, lambda: self._store.write(objects))
            self._insert(step, new.head)
        else:
            publication = Publication(self._store, found.row_name, base, new, objects)
            if retried(self._clock, partial(_conclusive, publication)) is Outcome.LOST:
                raise _moved(found.name)
            publication.remember()
        return new.head

    def _built(self, base: CommitReader, step: RecoveryStep) -> Built:
        """Return a new commit that follows `base`. It has the same content, and its log entry records the recovery."""
        applied = Applied(State(base, self._ids.next_id), self._ids.next_id())
        applied.entries.append(log_entry(step, self._principal, self._clock.now_ms()))
        return Builder(self._store, self._ids, CommitSettings({})).build(applied)

    def _insert(self, step: RecoveryStep, head: Head) -> None:
        name, realm = step.found.row_name, self._store.realm
        new = ReferenceRow(new_version(), encode_head(head))

        def once() -> ReferenceRow:
            row = self._backend.read_reference(realm, name)
            if row is None:
                self._backend.insert_reference(realm, name, new)
                row = self._backend.read_reference(realm, name)
            if row is None:
                raise TryAgainError(f"reference {name!r} was inserted, but its row cannot be read; try again")
            return row

        if retried(self._clock, once).version != new.version:
            raise _moved(step.found.name)

    def _tell_registry(self, steps: Sequence[RecoveryStep]) -> None:
        told = [step for step in steps if step.registry or _sealed(step)]
        if told:
            root = Committer(self._store, ROOT, ids=self._ids, clock=self._clock, settings=CommitSettings({}))
            root.commit(_Tell(told, Operation(b"", self._principal), self._clock))


class _Tell(ClockedChange[None]):
    """Change of the registry that adds the registrations that the registry had lost, of live and of dropped references.
    Its log entries also record the recovery of references whose rows are sealed."""

    def __init__(self, steps: Sequence[RecoveryStep], operation: Operation, clock: Clock) -> None:
        super().__init__(clock, operation)
        self.steps = steps

    def apply(self, state: State, prepared: int) -> None:
        for step in self.steps:
            if step.registry:
                self._register(state, step, prepared)
            state.log(log_entry(step, self.operation.principal, prepared))

    def _register(self, state: State, step: RecoveryStep, now: int) -> None:
        head, found = step.head, step.found
        assert head is not None
        name, who = found.name.encode(), self.operation.principal
        if found.registered is not None:
            dropped = msgspec.structs.replace(
                found.registered.registration, state="dropped", time=now, principal=who
            )
            state.put(REFERENCES, name, Entry(found.registered.source, encode_registration(dropped)))
            return
        registration = Registration.from_head(
            head, found.generation, now_ms=now, principal=who, state="dropped" if head.sealed else "live"
        )
        state.put(REFERENCES, name, Entry(head.commit, encode_registration(registration)))

    def repeat(self, state: State, entries: list[LogEntry]) -> None:
        return None


def log_entry(step: RecoveryStep, principal: str, now: int) -> LogEntry:
    """Return the log entry that records a step of the plan."""
    found, head = step.found, step.head
    summary = {"why": step.why}
    if found.head is not None:
        summary |= {"from": str(found.head.number), "from-commit": f"{found.head.commit:x}"}
    if head is not None:
        summary |= {"to": str(head.number), "to-commit": f"{head.commit:x}"}
        if found.head is None or head.floor_number > found.head.floor_number:
            summary["history-from"] = str(head.floor_number)
    if found.undone.commits:
        summary["lost-commits"] = str(found.undone.commits)
    return LogEntry(b"", principal, now, ACTION, found.generation, found.name.encode(), summary=summary)


def _conclusive(publication: Publication) -> Outcome:
    """Try to publish a commit. Return the outcome if it is final; else raise an error, so that the caller retries."""
    outcome = publication.publish()
    if outcome in (Outcome.COMMITTED, Outcome.LOST):
        return outcome
    raise publication.cause or OutcomeUnknownError(outcome.value)


def _sealed(step: RecoveryStep) -> bool:
    return step.action == "set" and step.head is not None and step.head.sealed


def _moved(name: str) -> StateError:
    return StateError(
        f"another process changed reference {name!r} during the recovery: stop all processes that write to the "
        "store, and run the recovery again"
    )
