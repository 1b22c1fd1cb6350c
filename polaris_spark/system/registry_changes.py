"""Changes of a realm's registry: create, rename, alter, drop, restore and end registrations of references."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from polaris_spark.clock import Clock
from polaris_spark.commits.builder import Built
from polaris_spark.commits.change import Change, ClockedChange, Operation, PrepareAgain, Unrepeated
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Commit, Head, LogEntry
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import AlreadyExistsError, NotFoundError, ProtectedBranchError, ReferenceGoneError
from polaris_spark.index import Entry
from polaris_spark.system.registrations import (
    NO_DESCRIPTION,
    REFERENCES,
    Description,
    Registered,
    Registration,
    encode_registration,
    registered_by,
    was_dropped_with_catalog,
)

P = TypeVar("P")

ENDED = "end-reference"
"""Value of `LogEntry.action` in log entries about the end of a dropped reference's registration."""


FirstChange = Callable[[int, Head], Change[Any, None]]
"""A function that returns the first change of a new reference. Its arguments are the id of the reference's beginning (a
new object id), and the head from which the reference begins."""


class OpenReferences(Protocol):
    """The part of `registry.References` that changes of the registry use."""

    clock: Clock

    def first_commit(self, at: Head, change: Change[Any, None]) -> Built:
        """Build a commit of a change that follows a commit of another reference. Nothing is written."""
        ...

    def read(self, name: str) -> CommitReader:
        """Read the row of a live reference, and return a reader of its newest commit."""
        ...

    def sealed_head(self, registered: Registered) -> Head:
        """Seal the row of a dropped reference against commits, and return its last head."""
        ...


class RegistryChange(Change[P, Registered]):
    action: str

    def __init__(self, name: str, operation: Operation, references: OpenReferences) -> None:
        self.name = name
        self.operation = operation
        self.references = references
        self.clock = references.clock

    def seal_dropped(self, view: State) -> None:
        """If the registration is dropped, seal the row of the reference. The process that dropped the reference may
        have died before it sealed the row, and other processes can commit to the reference until the row is sealed."""
        found = self.found(view)
        if found is not None and found.registration.state == "dropped":
            self.references.sealed_head(found)

    def found(self, state: State) -> Registered | None:
        return _found(state, self.name)

    def live(self, state: State) -> Registered:
        found = self.found(state)
        if found is None or found.registration.state != "live":
            raise NotFoundError(f"reference {self.name!r} does not exist")
        return found

    def refuse_rivals(self, state: State, rivals: Iterable[str]) -> None:
        """Refuse the change if one of the references `rivals` is live.

        Raises:
            AlreadyExistsError: one of the references is live.
        """
        for rival in rivals:
            found = _found(state, rival)
            if found is not None and found.registration.state == "live":
                raise AlreadyExistsError(f"reference {rival!r} already exists")

    def record(
        self, state: State, registered: Registered, now: int, summary: dict[str, str] | None = None
    ) -> Registered:
        return _record(state, registered, now, self.action, self.operation, summary)

    def repeat(self, state: State, entries: list[LogEntry]) -> Registered:
        found = self.found(state)
        if found is None:
            raise NotFoundError(f"reference {self.name!r} does not exist")
        return found


class _Beginning(NamedTuple):
    """The result of preparing `CreateReference`."""

    now: int
    generation: int
    head: Head | None
    """The first head; None for an empty reference."""
    objects: list[tuple[int, msgspec.Struct]]
    """Objects of the first commit that are not stored yet."""


class CreateReference(RegistryChange[_Beginning]):
    action = "create-reference"

    def __init__(
        self,
        name: str,
        operation: Operation,
        source: CommitReader | None,
        references: OpenReferences,
        *,
        description: Description = NO_DESCRIPTION,
        rivals: tuple[str, ...] = (),
        first: FirstChange | None = None,
    ) -> None:
        super().__init__(name, operation, references)
        self.source = source
        self.description = description
        self.rivals = rivals
        self.first = first

    def prepare(self, view: State) -> _Beginning:
        self.seal_dropped(view)
        now, generation = self.clock.now_ms(), view.new_id()
        head = None if self.source is None else self._begin(view, self.source)
        if head is None or self.first is None:
            return _Beginning(now, generation, head, [])
        built = self.references.first_commit(head, self.first(generation, head))
        return _Beginning(now, generation, built.reader.head, built.objects)

    def _begin(self, view: State, source: CommitReader) -> Head:
        """Return the first head of the new reference: the head of `source`, with the history floor that the source
        reference has now.

        The source reference is read after the registry. If the registry is fenced, or the source's registration
        changes, before this change is applied, the source is read again. So a sweep never overlooks the returned head.

        Raises:
            ReferenceGoneError: the source reference was dropped.
            NotFoundError, HistoryTrimmedError: the head of `source` is not, or no longer, in the history of the source
                reference.
        """
        name, _, generation = source.row_name.rpartition("@")
        entry = view.lookup(REFERENCES, name.encode())
        found = None if entry is None else registered_by(name, entry)
        if found is None or found.row_name != source.row_name or found.registration.state != "live":
            raise ReferenceGoneError(
                f"cannot create {self.name!r}: its source, reference {name!r} of generation {generation}, no longer "
                "exists"
            )
        return head_in(self.references, source, f"cannot create {self.name!r}")

    def apply(self, state: State, prepared: _Beginning) -> Registered:
        now, generation, head, objects = prepared
        self.refuse_rivals(state, (self.name, *self.rivals))
        who = self.operation.principal
        state.add_all(objects)
        if head is None:
            source = state.add(Commit(0, now, 0))
            registration = Registration(generation, "live", now, who, 0, now, 0, 0, (), *self.description)
        else:
            source = head.commit
            registration = Registration.from_head(
                head, generation, now_ms=now, principal=who, description=self.description
            )
        return self.record(state, Registered(self.name, source, registration), now)


class DropReference(RegistryChange[int]):
    action = "drop-reference"

    def __init__(
        self, name: str, operation: Operation, references: OpenReferences, *, renaming: str = ""
    ) -> None:
        super().__init__(name, operation, references)
        self.renaming = renaming

    def prepare(self, view: State) -> int:
        self.seal_dropped(view)
        return self.clock.now_ms()

    def apply(self, state: State, prepared: int) -> Registered:
        found = self.live(state)
        if found.registration.protected:
            raise ProtectedBranchError("the branch must not be dropped or renamed")
        dropped = msgspec.structs.replace(
            found.registration,
            state="dropped",
            time=prepared,
            principal=self.operation.principal,
            renaming=self.renaming,
        )
        return self.record(state, found._replace(registration=dropped), prepared)


class UndropReference(RegistryChange[tuple[int, Head | None]]):
    action = "undrop-reference"

    def __init__(
        self, name: str, operation: Operation, references: OpenReferences, *, rivals: tuple[str, ...] = ()
    ) -> None:
        super().__init__(name, operation, references)
        self.rivals = rivals

    def prepare(self, view: State) -> tuple[int, Head | None]:
        # If this operation is repeated after it succeeded, the reference is no longer dropped and the result is in
        # the log. So a reference that is not dropped is not an error here: `apply` decides.
        found = self.found(view)
        dropped = found is not None and found.registration.state == "dropped"
        return self.clock.now_ms(), self.references.sealed_head(found) if found and dropped else None

    def apply(self, state: State, prepared: tuple[int, Head | None]) -> Registered:
        now, head = prepared
        found = self.dropped(state)
        self.refuse_rivals(state, self.rivals)
        if head is None:
            raise PrepareAgain
        registration = _restored(state, found, head, now, self.operation.principal)
        return self.record(state, Registered(self.name, head.commit, registration), now)

    def dropped(self, state: State) -> Registered:
        found = self.found(state)
        if found is None or found.registration.state != "dropped":
            raise NotFoundError(
                f"there is no dropped reference {self.name!r} to restore; references that were dropped longer ago "
                "than the grace period cannot be restored"
            )
        return found


class RenameReference(UndropReference):
    """Restore a dropped reference under another name. Several processes can do this for the same drop: only the first
    commit takes effect."""

    action = "rename-reference"

    def __init__(
        self,
        dropped: Registered,
        operation: Operation,
        references: OpenReferences,
        *,
        rivals: tuple[str, ...] = (),
    ) -> None:
        self.to = dropped.registration.renaming
        super().__init__(dropped.name, operation, references, rivals=(self.to, *rivals))
        self.row_name = dropped.row_name

    def prepare(self, view: State) -> tuple[int, Head | None]:
        replaced = _found(view, self.to)
        if replaced is not None and replaced.registration.state == "dropped":
            self.references.sealed_head(replaced)
        return super().prepare(view)

    def apply(self, state: State, prepared: tuple[int, Head | None]) -> Registered:
        now, head = prepared
        done = _found(state, self.to)
        if done is not None and done.registration.renamed == self.row_name:
            return done
        found = self.dropped(state)
        self.refuse_rivals(state, self.rivals)
        if head is None:
            raise PrepareAgain
        who, key = self.operation.principal, self.name.encode()
        registration = msgspec.structs.replace(
            _restored(state, found, head, now, who), renamed=found.row_name
        )
        state.remove(REFERENCES, key)
        generation = registration.generation
        state.log(LogEntry(self.operation.id, who, now, self.action, generation, key, before=head.commit))
        return self.record(state, Registered(self.to, head.commit, registration), now, {"from": self.name})

    def repeat(self, state: State, entries: list[LogEntry]) -> Registered:
        renamed = _found(state, self.to)
        if renamed is None:
            raise NotFoundError(f"reference {self.to!r} does not exist")
        return renamed


class AlterReference(RegistryChange[int]):
    """Change the owner, comment, protection or retention of a live reference.

    Args:
        changes: the new values of fields of `Registration`, by name.
    """

    action = "alter-reference"

    def __init__(
        self,
        name: str,
        operation: Operation,
        references: OpenReferences,
        changes: Mapping[str, str | int],
    ) -> None:
        super().__init__(name, operation, references)
        self.changes = changes

    def prepare(self, view: State) -> int:
        return self.clock.now_ms()

    def apply(self, state: State, prepared: int) -> Registered:
        found = self.live(state)
        changed = {
            name: value for name, value in self.changes.items() if getattr(found.registration, name) != value
        }
        if not changed:
            return found
        if "protected" in changed:
            altered = msgspec.structs.replace(found.registration, **changed, protection=state.new_id())
        else:
            altered = msgspec.structs.replace(found.registration, **changed)
        summary = {
            name: str(value).lower() if name == "protected" else str(value) for name, value in changed.items()
        }
        return self.record(state, found._replace(registration=altered), prepared, summary)


class DropCatalogReferences(Unrepeated, ClockedChange[list[Registered]]):
    """Drop the live references whose names begin with a prefix, in one commit, because their catalog was dropped."""

    def __init__(self, prefix: str, operation: Operation, clock: Clock) -> None:
        super().__init__(clock, operation)
        self.prefix = prefix

    def apply(self, state: State, prepared: int) -> list[Registered]:
        dropped = []
        for one in _below(state, self.prefix):
            if one.registration.state == "live":
                registration = msgspec.structs.replace(
                    one.registration,
                    state="dropped",
                    time=prepared,
                    principal=self.operation.principal,
                    with_catalog=True,
                )
                changed = one._replace(registration=registration)
                dropped.append(_record(state, changed, prepared, DropReference.action, self.operation))
        return dropped


class RestoreCatalogReferences(Unrepeated, Change[tuple[int, dict[Registered, Head]], list[Registered]]):
    """Restore the references whose names begin with a prefix and which were dropped with their catalog, in one
    commit."""

    def __init__(self, prefix: str, operation: Operation, references: OpenReferences) -> None:
        self.prefix = prefix
        self.operation = operation
        self.references = references

    def prepare(self, view: State) -> tuple[int, dict[Registered, Head]]:
        heads = {one: self.references.sealed_head(one) for one in self._dropped(view)}
        return self.references.clock.now_ms(), heads

    def apply(self, state: State, prepared: tuple[int, dict[Registered, Head]]) -> list[Registered]:
        now, heads = prepared
        found = self._dropped(state)
        if not heads.keys() >= set(found):
            raise PrepareAgain
        restored = []
        for one in found:
            registration = _restored(state, one, heads[one], now, self.operation.principal)
            changed = Registered(one.name, heads[one].commit, registration)
            restored.append(_record(state, changed, now, UndropReference.action, self.operation))
        return restored

    def _dropped(self, state: State) -> list[Registered]:
        return [one for one in _below(state, self.prefix) if was_dropped_with_catalog(one)]


class EndReference(Unrepeated, ClockedChange[None]):
    """Change that ends the registrations of dropped references. Registrations that have changed since they were listed
    are skipped."""

    def __init__(self, dropped: Sequence[Registered], operation: Operation, clock: Clock) -> None:
        super().__init__(clock, operation)
        self.dropped = dropped

    def apply(self, state: State, prepared: int) -> None:
        for registered in self.dropped:
            key, r = registered.name.encode(), registered.registration
            entry = state.lookup(REFERENCES, key)
            if entry is None or registered_by(registered.name, entry) != registered or r.state != "dropped":
                continue
            state.remove(REFERENCES, key)
            state.log(LogEntry(b"", self.operation.principal, prepared, ENDED, r.generation, key))


def _record(
    state: State,
    registered: Registered,
    now: int,
    action: str,
    operation: Operation,
    summary: dict[str, str] | None = None,
) -> Registered:
    """Store a registration, and add a log entry."""
    key, r = registered.name.encode(), registered.registration
    state.put(REFERENCES, key, Entry(registered.source, encode_registration(r)))
    state.log(
        LogEntry(
            operation.id,
            operation.principal,
            now,
            action,
            r.generation,
            key,
            after=registered.source if r.state == "live" else 0,
            before=registered.source if r.state == "dropped" else 0,
            summary={**(summary or {}), **dict(operation.notes)},
        )
    )
    return registered


def _restored(state: State, found: Registered, head: Head, now: int, principal: str) -> Registration:
    """Return the registration of a restored reference, under a new generation."""
    before = found.registration
    restored = Registration.from_head(
        head, state.new_id(), now_ms=now, principal=principal, description=before.description
    )
    return msgspec.structs.replace(
        restored,
        protected=before.protected,
        protection=before.protection,
        keep_ms=before.keep_ms,
        keep_commits=before.keep_commits,
    )


def _below(state: State, prefix: str) -> list[Registered]:
    """Return the references whose names begin with a prefix that ends with a slash."""
    first, end = prefix.encode(), prefix[:-1].encode() + b"0"  # the character after the slash
    return [registered_by(key.decode(), entry) for key, entry in state.scan(REFERENCES, first, end)]


def _found(state: State, name: str) -> Registered | None:
    entry = state.lookup(REFERENCES, name.encode())
    return None if entry is None else registered_by(name, entry)


def head_in(references: OpenReferences, source: CommitReader, label: str) -> Head:
    """Return the head that `source` reads, but with the history floor (the oldest commit that is kept) that its
    reference has now.

    Args:
        label: beginning of error messages.
    Raises:
        ReferenceGoneError: the reference was dropped.
        NotFoundError, HistoryTrimmedError: the head is not, or no longer, in the history of the reference.
    """
    name, old = source.row_name.rpartition("@")[0], source.head
    fresh = references.read(name)
    if fresh.row_name != source.row_name:
        raise ReferenceGoneError(f"{label}: its source, reference {name!r}, has just been dropped")
    if old.number > fresh.head.number or ancestor(fresh.store, fresh.head, old.number) != old.commit:
        raise NotFoundError(f"{label}: commit {old.commit:x} is not in the history of its source {name!r}")
    floor = {"floor_number": fresh.head.floor_number, "floor_time": fresh.head.floor_time}
    return msgspec.structs.replace(old, **floor)
