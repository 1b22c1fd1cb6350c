"""Stores with a history that lose rows, and the expected rest, computed by independent code."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

from polaris_spark.backends.base import Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.memory import MemoryBackend
from polaris_spark.clock import Clock, ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import commits, entries
from polaris_spark.commits.publication import read_head
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import AlreadyExistsError, NotFoundError, OutcomeUnknownError, ReferenceGoneError
from polaris_spark.ids import IdGenerator
from polaris_spark.index import Index
from polaris_spark.objects import decode, decode_header, part_count
from polaris_spark.store.cache import ObjectCache
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.leases import NodeLeases
from polaris_spark.system.recovery.execution import Recovered, Recovery
from polaris_spark.system.recovery.plan import plan
from polaris_spark.system.recovery.survey import Survey, SurveyedReference
from polaris_spark.system.registry import ROOT, References
from tests.commits.support import Add, Box, number, references

REALM = "r"
MAIN, DEV, OTHER = "cat/1/heads/main", "cat/1/heads/dev", "cat/2/heads/main"
ME = Operation(b"", "me")
_numbers = count()


class Died(BaseException):
    """Raised where the simulated process ends."""


class Ending(MemoryBackend):
    """A store without transactions. The process that uses it ends, or loses an answer, at its n-th write."""

    transactional = False

    def __init__(self, inner: MemoryBackend, n: int, *, lost_answer: bool) -> None:
        super().__init__(inner._name)
        self.left = n
        self._error: BaseException = OutcomeUnknownError("the answer is lost") if lost_answer else Died()

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        super().write_objects(realm, rows)
        self._count()

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        outcome = super().insert_reference(realm, name, new)
        self._count()
        return outcome

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        outcome = super().write_and_swap(realm, (), name, expected_version, new)
        self._count()
        return outcome

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self._error


class History:
    """A store after a sequence of changes, and its reference rows after each change."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.backend = MemoryBackend(f"losses-{next(_numbers)}")
        self.references = process(self.backend, self.clock)
        self.past: list[dict[str, dict[str, ReferenceRow]]] = []
        self.note()

    def create(self, name: str, source: str | None = None) -> None:
        self.references.create(name, ME, source=self.references.read(source) if source else None)
        self.note()

    def drop(self, name: str) -> None:
        self.references.drop(name, ME)
        self.note()

    def add(self, name: str, key: str = "n", amount: int = 1) -> None:
        self.clock.sleep_ms(700)
        self.references.commit(name, Add(key, amount))
        self.note()

    def note(self) -> None:
        rows = self.backend._tables.references
        self.past.append({realm: dict(named) for realm, named in rows.items()})

    def at_random(self, seed: int, steps: int, *, forks: bool) -> History:
        """Commit at random to two references. With `forks`, branches are also created from one of them, dropped and
        restored."""
        rng = random.Random(seed)
        for name in (MAIN, OTHER):
            self.create(name)
        for _ in range(steps):
            chance = rng.random()
            try:
                if chance < 0.08 and forks:
                    self.create(DEV, MAIN)
                elif chance < 0.12 and forks:
                    self.drop(DEV)
                else:
                    name = rng.choice([MAIN, MAIN, OTHER, DEV if forks else OTHER])
                    self.add(name, f"k{rng.randrange(40)}" + "x" * 60, rng.randrange(100))
            except (AlreadyExistsError, NotFoundError, ReferenceGoneError):
                continue  # a reference that is, or is not, there just now
        return self

    def copy(self) -> MemoryBackend:
        """Another store with the same rows."""
        other = MemoryBackend(f"losses-{next(_numbers)}")
        other._tables.objects = {realm: dict(rows) for realm, rows in self.backend._tables.objects.items()}
        other._tables.references = {
            realm: dict(rows) for realm, rows in self.backend._tables.references.items()
        }
        return other


def process(backend: MemoryBackend, clock: Clock) -> References:
    """A process that uses the store."""
    return references(backend, clock=clock, leases=NodeLeases(backend, clock))


def store_of(backend: MemoryBackend) -> ObjectStore:
    """The realm's objects, with nothing in the cache."""
    return ObjectStore(backend, REALM, ObjectCache(), store_key="looking")


def survey(backend: MemoryBackend, *, search: bool = False) -> dict[str, SurveyedReference]:
    """Return the result of a survey, by name of the row."""
    return {found.row_name: found for found in Survey(store_of(backend), search=search).run()}


def recover(
    backend: MemoryBackend, clock: Clock, name: str | None = None, to: int | None = None
) -> Recovered:
    """Recover the realm, or one reference."""
    store = store_of(backend)
    looked = Survey(store)
    found = looked.run(name, to)
    ids = IdGenerator(NodeLeases(backend, clock), clock)
    recovery = Recovery(store, ids=ids, clock=clock, principal="operator")
    return recovery.carry_out(plan(found), looked.highest_id)


def ids_of(backend: MemoryBackend) -> list[int]:
    """Return the ids of all objects, oldest first."""
    return sorted({id for id, _ in backend._tables.objects[REALM]})


def lose(backend: MemoryBackend, ids: set[int], *, part: int | None = None) -> None:
    """Delete objects, or one part of each."""
    rows = backend._tables.objects[REALM]
    for key in [key for key in rows if key[0] in ids and part in (None, key[1])]:
        del rows[ObjectKey(*key)]


def head_of(backend: MemoryBackend, row_name: str) -> Head:
    """Return the head in a row."""
    row = backend.read_reference(REALM, row_name)
    assert row is not None
    return read_head(row, row_name)


def commit_of(backend: MemoryBackend, id: int) -> Commit | None:
    """A commit that is stored."""
    rows = backend.read_objects(REALM, [ObjectKey(id)])
    value = decode(rows[ObjectKey(id)], "").value if rows else None
    return value if isinstance(value, Commit) else None


def whole(backend: MemoryBackend, id: int) -> bool:
    """Whether an object and all objects reachable from it exist, by depth-first search with one read at a time."""
    pending, seen = [id], {id}
    while pending:
        at = pending.pop()
        rows = backend.read_objects(REALM, [ObjectKey(at)])
        if not rows:
            return False
        value = rows[ObjectKey(at)]
        parts = [ObjectKey(at, part) for part in range(part_count(value, ""))]
        if len(backend.read_objects(REALM, parts)) < len(parts):
            return False
        fresh = set(decode_header(value, "").strong) - seen
        seen |= fresh
        pending += fresh
    return True


def chain(intact: MemoryBackend, head: Head) -> list[tuple[int, int]]:
    """(number, id) of the commits of a head in a store that lost nothing, newest first."""
    found, id = [], head.commit
    while True:
        commit = commit_of(intact, id)
        assert commit is not None
        found.append((commit.number, id))
        if not commit.parents:
            return found
        id = commit.parents[0]


def content(backend: MemoryBackend, id: int) -> dict[bytes, int]:
    """Return the numbers in a commit."""
    store = store_of(backend)
    commit = store.get(id, Commit)
    reader = CommitReader(store, b"", Head(id, commit.number, commit.time), commit)
    index: Index = reader.index("names")
    return {key: store.get(entry.pointer, Box).number for key, entry in index.range()}


def live(backend: MemoryBackend, clock: Clock) -> list[str]:
    """Return the names of the references that a new process can read, the registry's first."""
    references_ = process(backend, clock)
    names = [ROOT]
    for registered in references_.listed():
        if registered.registration.state == "live":
            try:
                references_.read(registered.name)
            except ReferenceGoneError:
                continue
            names.append(registered.name)
    return names


def row_of(backend: MemoryBackend, name: str = MAIN) -> str:
    """The newest row of a reference."""
    return max(row for row in backend._tables.references["r"] if row.startswith(f"{name}@"))


def check_sound(backend: MemoryBackend, history: History) -> None:
    """Check that everything is complete, that history can be read back to the floor, and that new changes succeed."""
    assert all(found.complete for found in survey(backend).values())
    references = process(backend, history.clock)
    for name in live(backend, history.clock):
        committer = references.root if name == ROOT else references.open(name)
        head = committer.read().head
        assert [c.number for _, c in commits(references.store, head)] == list(
            range(head.number, head.floor_number - 1, -1)
        )
        list(entries(references.store, head))
        before = number(committer, "after")
        committer.commit(Add("after"))
        assert number(committer, "after") == before + 1
