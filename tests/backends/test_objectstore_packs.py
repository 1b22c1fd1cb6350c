"""Rows of an object store in packs. No row is lost or duplicated, whatever order of writes and deletions the same packs
get."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polaris_spark import ids
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import MAX_ROW_BYTES, ObjectKey, ObjectRow
from polaris_spark.backends.objectstore import ObjectStoreBackend, keys, packs
from polaris_spark.backends.objectstore.packs import OPEN, SINGLE, Content, PackRange
from polaris_spark.backends.objectstore.requests import Mark, Requests
from polaris_spark.clock import EPOCH_MS
from polaris_spark.errors import CorruptionError, OutcomeUnknownError, TryAgainError
from polaris_spark.ids import IdParts
from polaris_spark.testing.processes import rows as rows_of
from polaris_spark.testing.stores import MAX_ID
from tests.stores import StoreOn

Stored = dict[ObjectKey, bytes]
NOW: Final = EPOCH_MS + 10**10


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits with which packs are full after a few rows."""
    monkeypatch.setattr(packs, "_FULL", 300)
    monkeypatch.setattr(packs, "_MOST", 600)
    monkeypatch.setattr(packs, "LARGEST", 250)


@pytest.fixture(params=["s3", "file"])
def openings(request: pytest.FixtureRequest, store_on: StoreOn) -> Iterator[list[ObjectStoreBackend]]:
    """A store that is opened several times. Like processes, each handle has its own cache of packs."""
    uri = store_on(request.param)
    with ExitStack() as stack:
        found = [stack.enter_context(closing(open_backend(uri))) for _ in range(3)]
        found[0].setup()
        yield [each for each in found if isinstance(each, ObjectStoreBackend)]


@pytest.fixture
def backend(openings: list[ObjectStoreBackend]) -> ObjectStoreBackend:
    return openings[0]


def near_ids(count: int = 400) -> list[int]:
    """Ids that processes of two nodes generate within a tenth of a second, many of them in one millisecond."""
    parts = [IdParts(NOW + i % 97 // 3, i % 2, i) for i in range(count)]
    return [ids.pack(each) for each in parts]


def value_of(key: ObjectKey) -> bytes:
    """Return the value of a key. Values have various sizes, and a few are too large for small packs."""
    return bytes([(key.id * 7 + key.part) % 251]) * (key.id * 31 % 100 if key.id % 40 else 280)


def row_of(key: ObjectKey) -> ObjectRow:
    return ObjectRow(*key, value_of(key))


def scanned(backend: ObjectStoreBackend, n: int = 3) -> Counter[tuple[str, ObjectKey, bytes]]:
    found = rows_of(backend, backend.splits("objects", None, n))
    return Counter((str(realm), ObjectKey(id, part), value) for realm, id, part, value in found)  # type: ignore[arg-type]  # as their columns are


@pytest.mark.parametrize("seed", range(6))
def test_a_store_agrees_with_a_dictionary_after_any_writes_and_deletes(
    openings: list[ObjectStoreBackend], small_packs: None, seed: int
) -> None:
    dice = random.Random(seed)
    pool = [ObjectKey(id, part) for id in near_ids(count=150) for part in range(1 + id % 2)]
    model: Stored = {}
    for _ in range(60):
        backend = dice.choice(openings)
        first = dice.randrange(len(pool))
        some = dice.sample(pool[first : first + 40], min(len(pool) - first, dice.randrange(1, 30)))
        match dice.choice(["write", "write", "delete", "read"]):
            case "write":
                backend.write_objects("realm", [row_of(key) for key in some])
                model.update((key, value_of(key)) for key in some)
            case "delete":
                backend.delete_objects("realm", some)
                model = {key: value for key, value in model.items() if key not in some}
            case "read":
                assert backend.read_objects("realm", some) == {k: model[k] for k in some if k in model}
    for backend in openings:
        assert backend.read_objects("realm", pool) == model
    assert scanned(openings[0]) == Counter(("realm", key, value) for key, value in model.items())


class Trouble:
    """Conditional PUTs whose answers get lost, before or after they take place, or which arrive late.

    Late only where a request can be: a place with conditional deletes promises that none is.
    """

    def __init__(self, requests: Requests, seed: int) -> None:
        self._put_if = requests.put_if
        self._may_be_late = not requests.conditional_deletes
        self._dice = random.Random(seed)
        self._late: list[threading.Thread] = []

    def put_if(self, key: str, body: bytes, mark: Mark | None) -> Mark | None:
        fate = self._dice.random()
        if fate < 0.05:
            raise TryAgainError("refused")
        if fate < 0.10:
            raise OutcomeUnknownError("lost before it took place")
        if fate < 0.15 and self._may_be_late:
            late = threading.Thread(target=self._put_late, args=(key, body, mark))
            self._late.append(late)
            late.start()
            raise OutcomeUnknownError("under way")
        put = self._put_if(key, body, mark)
        if fate < 0.25:
            raise OutcomeUnknownError("lost after it was decided")
        return put

    def settle(self) -> None:
        for late in self._late:
            late.join()

    def _put_late(self, key: str, body: bytes, mark: Mark | None) -> None:
        time.sleep(self._dice.random() / 50)
        self._put_if(key, body, mark)


def use_at_random(backend: ObjectStoreBackend, own: list[ObjectKey], seed: int) -> Stored:
    """Write, delete and read rows that no other thread uses, in packs that others do; what is there in the end.

    What fails is done again until it is acknowledged.
    """
    dice = random.Random(seed)
    model: Stored = {}

    def done(do: Callable[[], None]) -> None:
        while True:
            try:
                return do()
            except (OutcomeUnknownError, TryAgainError):
                continue

    for _ in range(40):
        some = dice.sample(own, dice.randrange(1, 8))
        if dice.random() < 0.6:
            done(lambda some=some: backend.write_objects("realm", [row_of(key) for key in some]))  # type: ignore[misc]  # a default binds it
            model.update((key, value_of(key)) for key in some)
        else:
            done(lambda some=some: backend.delete_objects("realm", some))  # type: ignore[misc]  # as above
            model = {key: value for key, value in model.items() if key not in some}
        assert backend.read_objects("realm", some) == {key: model[key] for key in some if key in model}
    return model


@pytest.mark.parametrize("troubled", [False, True])
def test_writers_and_deleters_of_the_same_packs_lose_nothing(
    openings: list[ObjectStoreBackend],
    small_packs: None,
    monkeypatch: pytest.MonkeyPatch,
    troubled: bool,
) -> None:
    troubles = []
    for number, backend in enumerate(openings if troubled else ()):
        troubles.append(Trouble(backend._requests, number))
        monkeypatch.setattr(backend._requests, "put_if", troubles[-1].put_if)
    pool = [ObjectKey(id) for id in near_ids(count=240)]
    results: dict[int, Stored] = {}

    def run(number: int) -> None:
        backend = openings[number % len(openings)]
        results[number] = use_at_random(backend, pool[number::6], number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for trouble in troubles:
        trouble.settle()
    assert len(results) == 6, "a thread failed"
    wanted = {key: value for result in results.values() for key, value in result.items()}
    for backend in openings:
        assert backend.read_objects("realm", pool) == wanted
    assert scanned(openings[0]) == Counter(("realm", key, value) for key, value in wanted.items())


def test_a_deleted_row_that_another_process_remembers_is_written_again(
    openings: list[ObjectStoreBackend],
) -> None:
    first, second, _ = openings
    some = [row_of(ObjectKey(id)) for id in near_ids(count=20)]
    asked = [ObjectKey(row.id) for row in some]
    first.write_objects("realm", some)
    second.delete_objects("realm", asked[:5])
    first.write_objects("realm", some)
    assert len(second.read_objects("realm", asked)) == 20
    second.delete_objects("realm", asked)
    first.write_objects("realm", some[:3])
    assert set(second.read_objects("realm", asked)) == set(asked[:3])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, openings: list[ObjectStoreBackend]) -> Counter[str]:
    """Return the number of requests of a kind."""
    counts: Counter[str] = Counter()
    for kind in ("get", "put", "put_if"):
        for backend in openings:
            method = getattr(backend._requests, kind)
            monkeypatch.setattr(backend._requests, kind, counting(counts, kind, method))
    return counts


def counting(counts: Counter[str], kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        counts[kind] += 1
        return method(*arguments)

    return counted


def test_rows_of_near_ids_are_one_request_to_write_and_to_read(
    openings: list[ObjectStoreBackend], counted: Counter[str]
) -> None:
    first, second, _ = openings
    made = [ids.pack(IdParts(NOW + i // 10, 3, i % 10)) for i in range(60)]
    first.write_objects("realm", [ObjectRow(id, 0, b"x" * 100) for id in made])
    assert counted == {"put_if": 1}
    first.write_objects("realm", [ObjectRow(made[-1] + 1 + i, 0, b"y" * 100) for i in range(60)])
    assert counted == {"put_if": 2}
    assert len(second.read_objects("realm", [ObjectKey(id) for id in made])) == 60
    assert second.read_objects("realm", [ObjectKey(made[7])]) == {ObjectKey(made[7]): b"x" * 100}
    assert counted == {"put_if": 2, "get": 2}


def test_many_rows_at_once_take_few_requests(
    openings: list[ObjectStoreBackend], counted: Counter[str]
) -> None:
    first, second, _ = openings
    made = [ids.pack(IdParts(NOW + i // ids.SEQUENCE, 3, i % ids.SEQUENCE)) for i in range(5_000)]
    first.write_objects("realm", [ObjectRow(id, 0, b"x" * 500) for id in made])
    assert counted["put_if"] < 100
    assert len(second.read_objects("realm", [ObjectKey(id) for id in made])) == 5_000
    assert counted["get"] < 100
    assert counted["put"] == 0


def test_rows_beyond_the_last_level_and_large_ones_are_objects_of_their_own(
    openings: list[ObjectStoreBackend],
) -> None:
    first, second, _ = openings
    parts = [ObjectRow(77, part, b"%d" % part * 10_000) for part in range(40)]
    large = [ObjectRow(78, part, b"x" * MAX_ROW_BYTES) for part in range(2)]
    first.write_objects("realm", [*parts, *large])
    first.write_objects("realm", [*parts, *large])
    wanted = {ObjectKey(row.id, row.part): row.value for row in [*parts, *large]}
    assert second.read_objects("realm", list(wanted)) == wanted
    assert scanned(second) == Counter(("realm", key, value) for key, value in wanted.items())
    second.delete_objects("realm", list(wanted))
    assert first.read_objects("realm", list(wanted)) == {}
    assert scanned(first) == Counter()


def test_rows_that_were_written_one_by_one_are_found(backend: ObjectStoreBackend) -> None:
    key = ObjectKey(near_ids()[0], 1)
    backend._requests.put(keys.object_key("realm", key), b"alone")
    backend.write_objects("realm", [ObjectRow(key.id, 0, b"packed")])
    wanted = {ObjectKey(key.id): b"packed", key: b"alone"}
    assert backend.read_objects("realm", list(wanted)) == wanted
    backend.delete_objects("realm", list(wanted))
    assert backend.read_objects("realm", list(wanted)) == {}


def test_the_error_for_an_invalid_pack_contains_its_key(backend: ObjectStoreBackend) -> None:
    backend._requests.put(key := keys.pack_key("realm", packs.place(5, 0)), b"something else")
    for use in (
        lambda: backend.read_objects("realm", [ObjectKey(5)]),
        lambda: backend.write_objects("realm", [ObjectRow(5, 0, b"")]),
        lambda: scanned(backend),
    ):
        with pytest.raises(CorruptionError, match=key):
            use()


def test_concurrent_writes_to_one_pack_all_succeed(
    backend: ObjectStoreBackend, counted: Counter[str]
) -> None:
    made = [ids.pack(IdParts(NOW, 3, i)) for i in range(400)]
    ready = threading.Barrier(20)

    def write(number: int) -> None:
        ready.wait()
        for id in made[number::20]:
            backend.write_objects("realm", [ObjectRow(id, 0, b"%d" % id)])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend.read_objects("realm", [ObjectKey(id) for id in made]) == {
        ObjectKey(id): b"%d" % id for id in made
    }
    assert counted["put_if"] < 400


def test_a_refusal_after_a_lost_answer_leaves_the_doubt(
    backend: ObjectStoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Exception] = [TryAgainError("refused"), OutcomeUnknownError("lost")]

    def put_if(key: str, body: bytes, mark: Mark | None) -> Mark | None:
        raise answers.pop()

    monkeypatch.setattr(backend._requests, "put_if", put_if)
    with pytest.raises(OutcomeUnknownError, match="lost"):
        backend.write_objects("realm", [ObjectRow(1, 0, b"")])
    assert answers == []


def test_rows_written_while_their_realm_was_dropped_are_ignored(
    backend: ObjectStoreBackend, small_packs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = near_ids(count=2)[0]
    backend.write_objects("realm", [ObjectRow(made, 0, b"before")])
    delete = backend._requests.delete
    meanwhile = [[ObjectRow(made, part, b"x" * 200) for part in (1, 2)]]

    def write_and_delete(some: Sequence[str]) -> None:
        if meanwhile:
            backend.write_objects("realm", meanwhile.pop())
        delete(some)

    monkeypatch.setattr(backend._requests, "delete", write_and_delete)
    backend.drop_realm("realm")
    backend.write_objects("realm", [row := ObjectRow(made, 3, b"after")])
    assert backend.read_objects("realm", [ObjectKey(made, 3)]) == {ObjectKey(made, 3): row.value}


some_ids = st.integers(0, MAX_ID) | st.sampled_from(near_ids())


@given(some_ids, some_ids)
def test_a_place_lies_within_those_above_it(one: int, other: int) -> None:
    same = [packs.place(one, level) == packs.place(other, level) for level in range(SINGLE)]
    assert same == sorted(same, reverse=True)
    assert (one == other) <= all(same)


@given(
    st.sets(st.integers(0, 2**18 - 1), min_size=1, max_size=60),
    st.integers(0, SINGLE - 1),
    st.randoms(use_true_random=False),
)
def test_a_full_pack_points_to_a_lower_level_for_the_remaining_rows(
    numbers: set[int], level: int, dice: random.Random
) -> None:
    rows = [ObjectRow(number, 0, bytes(dice.choice([10, 1_000, 32_000]))) for number in numbers]
    held = {ObjectKey(row.id): row.value for row in rows[::2]}
    added = rows[1::2]
    new, left = packs.filled(PackRange(level, 0), Content(held), added)
    everything = {**held, **{ObjectKey(row.id): row.value for row in added}}
    assert {**new.rows, **{ObjectKey(row.id): row.value for row in left}} == everything
    assert not set(new.rows) & {ObjectKey(row.id) for row in left}
    assert new.next == OPEN or level < new.next <= SINGLE
    assert (new.next != OPEN) >= bool(left)
    body = packs.encode("realm", new)
    assert packs.content(body, "key") == new
    assert body != packs.encode("realm", new), "two states of a pack may have the same ETag"
