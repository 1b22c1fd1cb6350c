"""Row keys, and the key ranges that scans and drops use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, product

import pytest
from google.cloud.bigtable_v2.types import SampleRowKeysResponse

from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, Split
from polaris_spark.backends.bigtable import keys
from polaris_spark.errors import CorruptionError
from polaris_spark.testing.processes import rows
from polaris_spark.testing.stores import HOSTILE_NAMES, MAX_ID, row
from tests.backends.bigtable.relay import Forward, Relay

_HOSTILE = [*HOSTILE_NAMES, *("".join(each) for n in range(1, 5) for each in product("\0\1\2", repeat=n))]


def test_the_key_ranges_of_realms_do_not_overlap() -> None:
    prefixes = sorted({keys.realm_prefix(realm) for realm in _HOSTILE})
    assert len(prefixes) == len(set(_HOSTILE))
    assert all(keys.after(one) <= two for one, two in pairwise(prefixes))
    assert prefixes[0] >= keys.FIRST
    assert prefixes[-1] < b"\xff"


@pytest.mark.parametrize("realm", _HOSTILE)
def test_a_key_can_be_decoded(realm: str) -> None:
    prefix = keys.realm_prefix(realm)
    for key in (ObjectKey(0, 0), ObjectKey(MAX_ID, 2**31 - 1), ObjectKey(1 << 22, 3)):
        made = keys.object_key(prefix, key)
        assert keys.object_of(made) == (realm, *key)
        assert prefix < made < keys.after(prefix)
        assert keys.prefix_of(made) == prefix
    for name in _HOSTILE:
        made = keys.reference_key(realm, name)
        assert keys.reference_of(made) == (realm, name)
        assert prefix < made < keys.after(prefix)
        assert len(made) <= 4_096


@pytest.mark.parametrize("key", [b"realm", b"realm\x00short", b"\xff\x00" + bytes(13), b"\x00store"])
def test_keys_of_other_programs_are_reported(key: bytes) -> None:
    with pytest.raises(CorruptionError, match="not part of a catalog's store"):
        keys.object_of(key)


def test_the_newest_ids_are_spread_over_a_realm() -> None:
    snowflakes = [(5_000_000_000 + n << 22) + (7 << 12) + n % 3 for n in range(5_000)]
    hashes = Counter(keys.object_key(b"", ObjectKey(id))[0] for id in snowflakes)
    assert len(hashes) == keys.HASHES
    assert max(hashes.values()) < 60


def _spread(backend: Backend, splits: list[Split]) -> list[int]:
    return [len(rows(backend, [split])) for split in splits]


def test_a_realm_without_samples_is_split_evenly(far: Backend, relay: Relay) -> None:
    relay.rules["SampleRowKeys"] = lambda _, __: iter([SampleRowKeysResponse.serialize({"row_key": b""})])
    for realm in ("a", "b"):
        far.write_objects(realm, [ObjectRow(id << 22, 0, b"x") for id in range(2_000)])
    for realms, n, size in ((["a"], 8, 250), (["a", "b"], 8, 500), (None, 8, 500), (["a"], 1_000, 8)):
        splits = far.splits("objects", realms, n)
        sizes = _spread(far, splits)
        assert len(splits) == min(n, 256)
        assert sum(sizes) == (2_000 if realms == ["a"] else 4_000)
        assert max(sizes) < 2 * size + 10


def test_the_splits_of_a_large_table_begin_at_keys_that_bigtable_samples(far: Backend, relay: Relay) -> None:
    far.write_objects("realm", [ObjectRow(id << 22, 0, b"x") for id in range(1_000)])
    prefix = keys.realm_prefix("realm")
    cuts = [prefix + bytes([hash]) for hash in range(16, 256, 16)]

    def sample(_: bytes, __: Forward) -> Iterator[bytes]:
        for key in (b"a", *cuts, b"z", b""):
            yield SampleRowKeysResponse.serialize({"row_key": key})

    relay.rules["SampleRowKeys"] = sample
    for realms in (["realm"], None):
        splits = far.splits("objects", realms, 4)
        assert len(splits) == 4
        bounds = {bound for split in splits for range_ in split.detail for bound in range_}  # type: ignore[attr-defined]  # pairs
        assert len(bounds & set(cuts)) >= 3
        assert bounds <= {*cuts, b"a", b"z", keys.FIRST, b"\xff", prefix, keys.after(prefix)}
        assert sum(_spread(far, splits)) == 1_000


def test_many_realms_make_no_more_splits_than_asked_for(far: Backend) -> None:
    realms = [f"realm-{number}" for number in range(50)]
    for realm in realms:
        far.write_objects(realm, [ObjectRow(1, 0, b"x")])
        far.insert_reference(realm, "name", row())
    for table in ("objects", "references"):
        for asked in (realms, None):
            splits = far.splits(table, asked, 7)  # type: ignore[arg-type]  # one of the tables
            assert 1 <= len(splits) <= 7
            assert sum(_spread(far, splits)) == 50


def test_dropping_a_realm_keeps_realms_with_similar_names(far: Backend, relay: Relay) -> None:
    realms = ["a", "a\x00", "a\x00b", "a\x01", "a\x01\x01", "aa", "A"]
    for realm in realms:
        far.write_objects(realm, [ObjectRow(1, 0, b"x")])
        far.insert_reference(realm, "name", row())
    left = set(realms)
    for realm in realms[:-1]:
        assert far.drop_realm(realm)
        left.remove(realm)
        for table in ("objects", "references"):
            found = rows(far, far.splits(table, None, 3))  # type: ignore[arg-type]  # one of the tables
            assert {each[0] for each in found} == left
    assert relay.seen["DropRowRange"] == 2 * (len(realms) - 1)
