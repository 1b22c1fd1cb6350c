"""The end of a simulation, without faults: a new process resolves every unknown outcome, and reads all data in every
way."""

from __future__ import annotations

from collections.abc import Iterator

from polaris_spark.catalog.branches.archived_log import ARCHIVE, Archive
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import ancestor, commit_at, commits, entries
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import CommitReader, StoredObjects
from polaris_spark.index import check
from polaris_spark.maintenance.periods import Policy
from polaris_spark.maintenance.sweep import sweep
from polaris_spark.maintenance.trim import trim
from polaris_spark.store.objects import ObjectStore
from polaris_spark.system.reference_reader import ReferenceReader
from polaris_spark.system.registry import ROOT
from tests.simulation.changes import NUMBERS, Box
from tests.simulation.clients import Client
from tests.simulation.observer import REALM
from tests.simulation.plan import HOUR
from tests.simulation.world import Process, World


def finish(world: World, process: Process) -> None:
    """Repeat every operation whose outcome no client knows, then check the stored data."""
    client = Client(world, process, process.rng)
    heard = {request.operation for request in world.requests if request.outcome in ("done", "refused")}
    for request in list(world.requests):
        if request.outcome in ("", "unknown") and request.operation not in heard:
            heard.add(request.operation)
            client.repeat(request)
    for registered in process.references.listed():
        if registered.registration.state == "live" and registered.name != ARCHIVE:
            reader = process.references.read(registered.name)
            for problem in _problems(world, reader):
                world.observer.blame(f"{registered.name} at the end: {problem}")
    root = process.references.root.read()
    for problem in (*_history_problems(root), *_archive_problems(root)):
        world.observer.blame(f"root at the end: {problem}")
    world.observer.reachable()
    process.ids.release()


def sweep_everything(world: World, process: Process) -> None:
    """Delete everything that is not needed, and record a violation if other unneeded rows remain."""
    world.observer.grace_ms = 0.0
    process.clock.sleep_ms(24 * HOUR)
    trim(process.references, Policy(0, 0))
    swept = sweep(process.references, Policy(0, 0), operation=Operation(b"", "sweep"))
    left = {id for id, _ in world.backend.rows(REALM) if id < swept.roots.limit} - world.observer.reachable()
    if left:
        world.observer.blame(f"a sweep left {len(left)} objects that nothing needs")


def _problems(world: World, reader: CommitReader) -> Iterator[str]:
    yield from _history_problems(reader)
    expected = world.observer.contents[reader.head.commit].state
    found = _numbers(reader.store, reader)
    if found != expected:
        yield f"{found} where the model has {expected}"
    listed = [key for key, _ in reader.index(NUMBERS).range(reverse=True)]
    if listed != sorted(expected, reverse=True):
        yield "backwards the index lists other keys"
    yield from _replay_problems(reader)


def _numbers(store: ObjectStore, reader: CommitReader) -> dict[bytes, int]:
    found = dict(reader.index(NUMBERS).range())
    boxes = store.get_many({entry.pointer for entry in found.values()}, Box)
    return {key: boxes[entry.pointer].number for key, entry in found.items()}


def _history_problems(reader: CommitReader) -> Iterator[str]:
    """Check the chain of commits in every way in which it can be read, and every index of the head."""
    store, head = reader.store, reader.head
    chain = list(commits(store, head))
    numbers = [commit.number for _, commit in chain]
    if numbers != list(range(head.number, head.floor_number - 1, -1)):
        yield f"the history is {numbers}, from {head.number} to {head.floor_number}"
        return
    for id, commit in chain:
        if ancestor(store, head, commit.number) != id:
            yield f"the ancestor at {commit.number} is not {id}"
    for _, commit in chain[:: max(1, len(chain) // 5)]:
        newest = next(one for one, other in chain if other.time <= commit.time)
        if commit_at(store, head, commit.time) != newest:
            yield f"at {commit.time} the newest commit was not {newest}"
    by_number = {commit.number: id for id, commit in chain}
    for recent in head.recent:
        if recent.number >= head.floor_number and by_number.get(recent.number) != recent.commit:
            yield f"recent head {recent.number} is not in the history"
    read = StoredObjects(store).read_shards
    for name, root in zip(reader.commit.index_names, reader.commit.index_roots, strict=True):
        for fault in check(root, read):
            yield f"index {name}: {fault.message}"


def _archive_problems(root: CommitReader) -> Iterator[str]:
    """Check that the archive has the log of every commit that was trimmed from the registry, each once."""
    store, head = root.store, root.head
    archived = Archive(ReferenceReader(store), root).of(head, ROOT, ROOT)
    found = list(archived.oldest_first(store, 0))
    if [commit.number for commit in found] != list(range(head.floor_number)):
        yield f"the archive has {[commit.number for commit in found]}, and the floor is {head.floor_number}"
    newest = store.get(ancestor(store, head, head.floor_number), Commit)
    for commit in reversed(found):
        if newest.parents[0] != commit.id:
            yield f"the archived commit {commit.number} is {commit.id}, not {newest.parents[0]}"
        newest = commit.commit
    operations = [entry.operation for commit in found for entry in commit.entries if entry.operation]
    if len(operations) != len(set(operations)):
        yield "an operation is in the archived log twice"


def _replay_problems(reader: CommitReader) -> Iterator[str]:
    """Check that the log replays forwards from the floor to the head, and backwards from the head to the floor."""
    store, head = reader.store, reader.head
    floor_id = ancestor(store, head, head.floor_number)
    floor = CommitReader(store, b"", head, store.get(floor_id, Commit))
    oldest = {key: entry.pointer for key, entry in floor.index(NUMBERS).range()}
    newest = {key: entry.pointer for key, entry in reader.index(NUMBERS).range()}
    logged = [entry for id, _, _, entry in entries(store, head) if id != floor_id]
    forwards, backwards = dict(oldest), dict(newest)
    for entry in reversed(logged):
        _step(forwards, entry.key, entry.after)
    for entry in logged:
        _step(backwards, entry.key, entry.before)
    if forwards != newest:
        yield "the log forwards from the floor does not give the head"
    if backwards != oldest:
        yield "the log backwards from the head does not give the floor"


def _step(state: dict[bytes, int], key: bytes, pointer: int) -> None:
    if pointer:
        state[key] = pointer
    else:
        state.pop(key, None)
