"""The capacity model: properties that hold for all constants, and the figures on its documentation page."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from benchmarks import capacity
from benchmarks.capacity import KINDS, Kind, Workload, cost, crowded, predict, shards
from polaris_spark.index import Entry, Index, IndexRoot, IndexSettings
from tests.index.support import Shelf, numbered

SQLITE, POSTGRESQL, S3 = KINDS[:3]
PAGE = (Path(__file__).parents[2] / "docs" / "operate" / "capacity.md").read_text(encoding="utf-8")


def test_the_page_has_the_table_that_the_model_gives() -> None:
    assert capacity.table() in PAGE


def test_the_code_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = PAGE.split("```python\n")[1].split("```")[0]
    exec(compile(code, "capacity.md", "exec"), {})
    assert "commits/s" in capsys.readouterr().out


def test_the_page_says_the_constants() -> None:
    for constant in (
        f"({capacity.CHANGE_BYTES:,} bytes)",
        f"({capacity.COMMIT_BYTES:,} bytes)",
        f"about {capacity.PENDING} changes",
        f"Then {capacity.SPILLED} of them",
        f"({capacity.LEAF_ENTRIES} tables",
        f"{capacity.COMMIT_US / 1_000:g} ms of work",
        f"{capacity.SHARD_US / 1_000:g} ms for each shard",
        f"{capacity.BATCHED_US / 1_000:g} ms",
        f"{capacity.SCAN_ROWS:,} rows/s",
        f"assumes {capacity.ASSUMED_WRITE_BYTES // 10**6} MB/s",
    ):
        assert constant in " ".join(PAGE.split()), constant


@pytest.mark.parametrize("tables", [1_000, 10_000, 100_000])
def test_the_model_of_spills_agrees_with_an_index_of_that_size(tables: int) -> None:
    shelf, settings, chance = Shelf(), IndexSettings(), random.Random(tables)
    root: IndexRoot = shelf.root_of(numbered(range(tables)), settings)
    entries = tables / sum(1 for id in shelf.rows if b"leaf" in shelf.rows[id][:16])
    written = 0
    for step in range(400):
        index = Index(root, shelf.read, settings)
        ((key, entry),) = numbered([chance.randrange(tables)], tag=step).items()
        index.put(key, Entry(entry.pointer, b"12345678"))
        root, new = index.freeze(2_048, shelf.new_id)
        shelf.write(new)
        written += len(new)
    assert 100 < entries < 400
    assert 0.5 < written / 400 / shards(tables).rows < 1.7


def test_the_fullest_bins_are_taken_first() -> None:
    chance, keys, bins, wanted, needed = random.Random(1), 38, 39, 20, 0.0
    for _ in range(500):
        counts = [0] * bins
        for _ in range(keys):
            counts[chance.randrange(bins)] += 1
        held = used = 0
        for count in sorted(counts, reverse=True):
            if held >= wanted:
                break
            held, used = held + count, used + 1
        needed += used / 500
    assert crowded(keys, bins, wanted) == pytest.approx(needed, rel=0.1)
    assert crowded(keys, 1, wanted) == 1


@pytest.mark.parametrize("batch", [1, 16])
def test_a_larger_catalog_costs_more_and_never_much_more(batch: int) -> None:
    sizes = [10**n for n in range(2, 9)]
    costs = [cost(size, batch=batch) for size in sizes]
    for small, large in itertools.pairwise(costs):
        assert small.bytes <= large.bytes < small.bytes + 6_500
        assert small.cpu_us <= large.cpu_us
    assert cost(10**6).bytes <= 20_000
    assert costs[-1].rows < 10


def test_a_batch_shares_the_commit() -> None:
    assert cost(10**5, batch=16).bytes < cost(10**5).bytes
    assert cost(10**5, batch=16).cpu_us < cost(10**5).cpu_us


def test_the_least_limit_decides() -> None:
    load = Workload(processes=1, threads=1)
    slow = Kind("slow", alone=10, apart=100, contended=5, transactions=True)
    assert 9 < predict(slow, load).apart < 10  # the one client's own round trips
    many = load._replace(processes=1_000)
    assert predict(slow, many).apart == 100
    assert predict(slow, many).together == 5
    assert predict(slow, many._replace(threads=16)).together == 5 * 16
    narrow = SQLITE._replace(apart=10**9)
    assert predict(narrow, many).apart * cost(1_000).bytes == pytest.approx(
        capacity.ASSUMED_WRITE_BYTES, rel=0.3
    )


def test_without_transactions_a_commit_takes_two_round_trips() -> None:
    gained = capacity.commit_us(1_000, S3) - capacity.commit_us(1_000, S3._replace(transactions=True))
    assert gained == pytest.approx(1e6 / S3.alone)


def test_growth_and_cleaning_follow_the_demand() -> None:
    load = Workload()
    twice = load._replace(commits_per_table=20.0)
    one, two = predict(POSTGRESQL, load), predict(POSTGRESQL, twice)
    assert two.bytes_per_day == pytest.approx(2 * one.bytes_per_day)
    assert one.bytes_per_day == pytest.approx(one.bytes * 86_400)
    assert one.cleaning_core_hours < two.cleaning_core_hours < 2 * one.cleaning_core_hours
    longer = predict(POSTGRESQL, load._replace(history_days=30.0))
    assert longer.bytes_kept > 5 * one.bytes_kept
