"""Which files are orphans: names, locations and ages."""

from __future__ import annotations

from typing import Any

import pytest

from polaris_spark.errors import InputError
from polaris_spark.maintenance.orphans.decisions import (
    DAY_MS,
    Comparison,
    FileName,
    Mismatch,
    OwnedLocation,
    comparison,
    folders_of,
    is_below,
    is_hidden,
    judge,
    outermost,
    require_old,
)

NAMES = Comparison()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://bucket/a/b", "s3a://bucket/a/b"),
        ("s3n://bucket/a/b", "S3A://Bucket//a///b"),
        ("file:/a/b", "file:///a/b"),
        ("file://localhost/a/b", "FILE:/a/b/"),
        ("s3://b/a%20b", "s3://b/a b"),
        ("s3://b/p=x%2Fy/f", "s3://b/p=x%252Fy/f"),
        ("s3://b/a/./b", "s3://b/a/b"),
        ("s3://b/a/../b", "s3://b/b"),
        ("s3://b/%2e%2e/b", "s3://b/b"),
        ("s3://b/e\u0301", "s3://b/\u00e9"),
        ("gcs://b/a", "gs://b/a"),
        ("abfss://c@acct.blob.core.windows.net/a", "abfs://c@acct.dfs.core.windows.net/a"),
    ],
)
def test_spellings_that_may_mean_one_file_are_the_same(one: str, other: str) -> None:
    assert NAMES.of(one) == NAMES.of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/a#1", "s3://b/a#2"),
        ("s3://b/a?x", "s3://b/a"),
        ("s3://b/A", "s3://b/a"),
        ("s3://b1/a", "s3://b2/a"),
        ("s3://b/a", "hdfs://b/a"),
        ("s3://b/a+b", "s3://b/a b"),
    ],
)
def test_other_files_keep_other_names(one: str, other: str) -> None:
    assert NAMES.of(one) != NAMES.of(other)


def test_a_path_without_scheme_may_be_that_of_any_storage() -> None:
    listed = NAMES.of("hdfs://nn:8020/a/b")
    assert listed.has_prefix_of(NAMES.of("/a/b"))
    assert listed.has_prefix_of(NAMES.of("hdfs:///a/b"))
    assert not listed.has_prefix_of(NAMES.of("hdfs://other/a/b"))
    assert NAMES.of("//host/a") == FileName("", "", "/host/a")


def test_users_say_which_schemes_and_authorities_are_the_same() -> None:
    names = comparison({"oss, cos": "s3"}, {"nn1:8020,nn2:8020": "cluster"})
    assert names.of("oss://b/a") == names.of("cos://b/a") == names.of("s3a://b/a")
    assert names.of("hdfs://NN1:8020/a") == names.of("hdfs://nn2:8020/a") == names.of("hdfs://cluster/a")


@pytest.mark.parametrize("option", ["equal_schemes", "equal_authorities"])
def test_a_null_value_in_a_map_of_equivalents_is_refused(option: str) -> None:
    given: Any = {"a, b": None}
    with pytest.raises(InputError, match=f"{option}: the value for 'a, b' is null"):
        comparison(*((given, None) if option == "equal_schemes" else (None, given)))


def test_modes_are_named_in_any_case() -> None:
    assert Mismatch.parse(" Delete ") is Mismatch.DELETE
    with pytest.raises(InputError, match="error, ignore, delete"):
        Mismatch.parse("none")


def test_young_files_are_not_orphans_unless_forced() -> None:
    require_old(10 * DAY_MS, 7 * DAY_MS, force=False)
    require_old(10 * DAY_MS, 9 * DAY_MS, force=False)
    for before in (9 * DAY_MS + 1, 10 * DAY_MS, 11 * DAY_MS):
        with pytest.raises(InputError, match="24 hours"):
            require_old(10 * DAY_MS, before, force=False)
        require_old(10 * DAY_MS, before, force=True)


def test_hidden_files_are_those_of_hadoop_but_for_partitions() -> None:
    assert is_hidden(["_temporary", "0", "f"])
    assert is_hidden(["data", ".f.crc"])
    assert not is_hidden(["data", "p=_x", "f"])
    assert not is_hidden(["data", "_p=1", "f"], ["_p="])
    assert is_hidden(["data", "_p=1", "_f"], ["_p="])


def test_folders_of_a_path_begin_with_the_nearest() -> None:
    assert folders_of("/a/b/c") == ["/a/b", "/a", "/"]
    assert folders_of("/") == []


def test_hidden_counts_from_the_innermost_location() -> None:
    table = OwnedLocation(NAMES.of("/w/_ns/t"), "c.t")
    assert judge(NAMES.of("/w/_ns/t/data/f"), "/w", [table]).is_orphan
    assert not judge(NAMES.of("/w/_ns/t/_data/f"), "/w", [table]).is_orphan
    assert not judge(NAMES.of("/w/_ns/x/data/f"), "/w", []).is_orphan
    assert judge(NAMES.of("/w/_ns/t/_p=1/f"), "/w", [table._replace(partitions=("_p=",))]).is_orphan


def test_the_innermost_location_names_the_owner() -> None:
    places = [OwnedLocation(NAMES.of("/w"), "c.outer"), OwnedLocation(NAMES.of("/w/t"), "c.t")]
    assert judge(NAMES.of("/w/t/f"), "/w", places).owner == "c.t"
    assert judge(NAMES.of("/w/t/f"), "/w", []).owner is None


def test_no_file_is_deleted_where_gc_enabled_is_false() -> None:
    kept = OwnedLocation(NAMES.of("/w/t"), "c.t", kept=True)
    assert not judge(NAMES.of("/w/t/f"), "/w", [kept]).is_orphan
    assert not judge(
        NAMES.of("/w/t/inner/f"), "/w", [kept, OwnedLocation(NAMES.of("/w/t/inner"), "c.inner")]
    ).is_orphan


def test_an_unreadable_table_keeps_the_files_in_its_location_and_files_without_an_owner() -> None:
    broken, sound = OwnedLocation(NAMES.of("/w/b"), "c.b"), OwnedLocation(NAMES.of("/w/t"), "c.t")
    assert not judge(NAMES.of("/w/b/f"), "/w", [broken], {"c.b"}).is_orphan
    assert not judge(NAMES.of("/w/stray/f"), "/w", [], {"c.b"}).is_orphan
    assert judge(NAMES.of("/w/t/f"), "/w", [sound], {"c.b"}).is_orphan


def test_a_file_is_an_orphan_only_by_a_location_in_the_same_storage() -> None:
    file, root = NAMES.of("s3://prod/db/t/_p=1/old"), "/db"
    same = OwnedLocation(NAMES.of("s3a://PROD/db/t"), "c.t", partitions=("_p=",))
    others = [same._replace(name=NAMES.of(f"{prefix}/db/t")) for prefix in ("s3://dev", "gs://prod")]
    assert judge(file, root, [*others, same], {"c.u"}) == (True, "c.t")
    assert judge(file, root, [same], keeps_strays=True).is_orphan
    stray = NAMES.of("s3://prod/db/t/old")
    for other in others:
        assert judge(stray, root, [other]) == (True, None)
        assert not judge(file, root, [other]).is_orphan, "it is hidden"
        assert not judge(stray, root, [other], {"c.u"}).is_orphan
        assert not judge(stray, root, [other], keeps_strays=True).is_orphan
        assert not judge(stray, root, [other._replace(kept=True), same]).is_orphan
        assert not judge(stray, root, [other, same._replace(owner="c.same")], {"c.t"}).is_orphan


@pytest.mark.parametrize("location", ["hdfs:/w/t", "hdfs:///w/t", "/w/t", "hdfs://nn/w/t"])
def test_a_place_without_an_authority_is_of_any_storage(location: str) -> None:
    place = OwnedLocation(NAMES.of(location), "c.t")
    file = NAMES.of("hdfs://nn/w/t/data/f")
    assert judge(file, "/w", [place], {"c.broken"}, keeps_strays=True) == (True, "c.t")
    assert not judge(file, "/w", [place], {"c.t"}).is_orphan


def test_folders_inside_others_are_listed_once() -> None:
    roots = ["s3://b/w", "s3a://b/w/", "s3://b/w/t", "s3://b/wide", "s3://other/w/t"]
    assert outermost(roots, NAMES.of) == ["s3://b/w", "s3://b/wide", "s3://other/w/t"]
    assert is_below(NAMES.of("s3://b/w/t"), NAMES.of("s3://b/"))
    assert not is_below(NAMES.of("s3://b/wide"), NAMES.of("s3://b/w"))
