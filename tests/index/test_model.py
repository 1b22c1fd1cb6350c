"""An index compared with a dictionary, in any order of operations."""

from __future__ import annotations

from itertools import islice

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from polaris_spark.index import Entry, Index, IndexRoot, IndexSettings, check, diff
from polaris_spark.index.compaction import compact
from tests.index.support import FIRST_ID, TINY, Shelf, out_of_bounds

FULL = IndexSettings(max_shard_bytes=256, min_shard_bytes=80, fill=0.9)

short = st.lists(st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x03", b"a", b"b", b"\xff"]), max_size=5)
keys = st.one_of(
    st.integers(0, 400).map(lambda number: b"\x02ns\x01ttable_%03d" % number),
    short.map(b"".join),
)
entries = st.builds(
    Entry,
    st.one_of(st.just(0), st.integers(FIRST_ID, FIRST_ID + 1000)),
    st.one_of(st.just(b""), st.binary(max_size=12)),
)
runs = st.tuples(st.integers(0, 380), st.integers(1, 120), st.integers(1, 7))


class IndexMachine(RuleBasedStateMachine):
    """Working copy, roots and savepoints must agree with a dictionary and its copies."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.index = Index(IndexRoot(), self.shelf.read, TINY)
        self.model: dict[bytes, Entry] = {}
        self.savepoints: list[tuple[int, dict[bytes, Entry]]] = []
        self.roots: list[tuple[IndexRoot, dict[bytes, Entry]]] = [(IndexRoot(), {})]

    @rule(key=keys, entry=entries)
    def put(self, key: bytes, entry: Entry) -> None:
        self.index.put(key, entry)
        self.model[key] = entry

    @rule(run=runs, entry=entries)
    def put_a_run(self, run: tuple[int, int, int], entry: Entry) -> None:
        for number in range(run[0], run[0] + run[1] * run[2], run[2]):
            self.put(b"\x02ns\x01ttable_%03d" % number, entry)

    @rule(key=keys)
    def remove(self, key: bytes) -> None:
        self.index.remove(key)
        self.model.pop(key, None)

    @rule(start=keys, end=keys)
    def remove_a_range(self, start: bytes, end: bytes) -> None:
        for key, _ in list(self.index.range(start, end)):
            self.remove(key)
        assert not self.index.keys(start, end)

    @rule()
    def take_a_savepoint(self) -> None:
        self.savepoints.append((self.index.savepoint(), self.model.copy()))

    @precondition(lambda self: self.savepoints)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        chosen = data.draw(st.integers(0, len(self.savepoints) - 1))
        token, model = self.savepoints[chosen]
        del self.savepoints[chosen + 1 :]
        self.index.rollback(token)
        self.model = model.copy()

    @rule()
    def go_on_with_a_copy(self) -> None:
        original, self.index = self.index, self.index.copy()
        original.put(b"other", Entry(1))
        original.remove(b"a")
        self.savepoints.clear()

    @rule(quota=st.sampled_from([0, 40, 300, 1000, 100_000]))
    def freeze(self, quota: int) -> None:
        root, shards = self.index.freeze(quota, self.shelf.new_id)
        self.shelf.write(shards)
        again = Index(root, self.shelf.read, TINY)
        assert list(check(root, self.shelf.read)) == []
        assert out_of_bounds(root, self.shelf, TINY) == []
        assert again.embedded_bytes <= quota
        if quota == 0:
            assert root.count == len(self.model)
        self.go_on_with(root)

    def go_on_with(self, root: IndexRoot) -> None:
        self.index = Index(root, self.shelf.read, TINY)
        self.savepoints.clear()
        self.roots.append((root, self.model.copy()))

    @rule(start=keys, leaves=st.integers(1, 12))
    def compact_some_leaves(self, start: bytes, leaves: int) -> None:
        found = self.index.embedded()
        done = compact(self.index, start, leaves, self.shelf.read, self.shelf.new_id, FULL)
        assert done.end is None or done.end > start
        if done.tree != self.index.tree:
            self.shelf.write(done.shards)
            absorbed = [k for k in found if k >= done.start and (done.end is None or k < done.end)]
            self.index.replace_tree(done.tree, absorbed)

    @rule(quota=st.sampled_from([0, 40, 300]), floor=keys)
    def freeze_with_a_floor(self, quota: int, floor: bytes) -> None:
        root, shards = self.index.freeze(quota, self.shelf.new_id, floor=floor)
        self.shelf.write(shards)
        assert list(check(root, self.shelf.read)) == []
        left = self.shelf.content(root)
        assert left.items() <= self.model.items()
        assert [key for key in self.model if key >= floor and key not in left] == []
        self.model = left
        self.go_on_with(root)

    @rule(data=st.data())
    def compare_two_roots(self, data: st.DataObject) -> None:
        (one, before), (two, after) = (data.draw(st.sampled_from(self.roots[-6:])) for _ in range(2))
        changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
        expected = [(key, before.get(key), after.get(key)) for key in changed]
        assert list(diff(one, two, self.shelf.read)) == expected

    @rule(start=keys, end=st.one_of(st.none(), keys), size=st.integers(1, 40), reverse=st.booleans())
    def iterate_by_pages(self, start: bytes, end: bytes | None, size: int, reverse: bool) -> None:
        found: list[tuple[bytes, Entry]] = []
        low, high = start, end
        while page := list(islice(self.index.range(low, high, reverse=reverse), size)):
            found += page
            if reverse:
                high = page[-1][0]
            else:
                low = page[-1][0] + b"\0"
        whole = self.index.range(start, end, reverse=reverse)
        assert found == list(whole)

    @rule(key=keys)
    def get(self, key: bytes) -> None:
        assert self.index.get(key) == self.model.get(key)

    @rule(wanted=st.lists(keys, max_size=20))
    def get_many(self, wanted: list[bytes]) -> None:
        assert self.index.get_many(wanted) == [self.model.get(key) for key in wanted]

    @rule(start=keys, end=st.one_of(st.none(), keys), reverse=st.booleans())
    def iterate(self, start: bytes, end: bytes | None, reverse: bool) -> None:
        found = list(self.index.range(start, end, reverse=reverse))
        expected = [
            item for item in self.model.items() if start <= item[0] and (end is None or item[0] < end)
        ]
        assert found == sorted(expected, reverse=reverse)
        listed = [key for key, _ in sorted(expected)]
        assert self.index.keys(start, end) == listed
        for limit in (0, 1, len(listed) // 2, len(listed), len(listed) + 1):
            assert self.index.keys(start, end, limit) == listed[:limit]

    @invariant()
    def embedded_bytes_are_what_the_embedded_part_takes(self) -> None:
        root, _ = self.index.freeze(1 << 30, self.shelf.new_id)
        assert self.index.embedded_bytes == Index(root, self.shelf.read, TINY).embedded_bytes

    def teardown(self) -> None:
        found = self.index.columns()
        assert list(self.index.range()) == [
            (key, Entry(pointer, value)) for key, pointer, value in zip(*found, strict=True)
        ]
        assert dict(self.index.range()) == self.model
        assert list(self.index.range(reverse=True)) == sorted(self.model.items(), reverse=True)


TestIndexAgainstADictionary = IndexMachine.TestCase
TestIndexAgainstADictionary.settings = settings(max_examples=80, stateful_step_count=40)
