"""The key codec."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from polaris_spark.errors import CorruptionError, InputError, ObjectTooLargeError
from polaris_spark.index import keys

hostile = st.text(
    st.one_of(
        st.sampled_from("\x00\x01\x02\x03\x04\x05\x06\x07ab\u00e9\U0001f409"), st.characters(codec="utf-8")
    ),
    max_size=8,
)
paths = st.lists(hostile, max_size=4)
kinds = st.binary(min_size=1, max_size=1)


@given(paths, kinds, hostile)
@example([""], b"\x01", "")
@example(["", ""], b"\x02", "\x00")
def test_a_key_can_be_decoded_to_its_parts(path: list[str], kind: bytes, name: str) -> None:
    assert keys.decode_key(keys.entry_key(path, kind, name)) == (tuple(path), kind, name)


@given(paths, paths, kinds, hostile)
def test_exactly_the_direct_entries_of_a_path_are_in_its_range(
    path: list[str], other: list[str], kind: bytes, name: str
) -> None:
    start, end = keys.children(path)
    assert (start <= keys.entry_key(other, kind, name) < end) == (path == other)
    assert start <= keys.entry_key(path, kind, name) < end


@given(paths, kinds, kinds, hostile)
@example([], b"\xff", b"\xff", "\U0010ffff")
@example([], b"\xff", b"\xfe", "")
def test_exactly_the_entries_of_a_kind_are_in_its_range(
    path: list[str], kind: bytes, other: bytes, name: str
) -> None:
    start, end = keys.children(path, kind)
    assert (start <= keys.entry_key(path, other, name) < end) == (kind == other)
    assert not start <= keys.entry_key([*path, name], kind, name) < end


@given(paths, paths, kinds, hostile)
def test_the_subtree_of_a_path_has_exactly_the_keys_at_or_below_it(
    path: list[str], other: list[str], kind: bytes, name: str
) -> None:
    start, end = keys.subtree(path)
    assert (start <= keys.entry_key(other, kind, name) < end) == (other[: len(path)] == path)
    assert start <= keys.entry_key(path + other, kind, name) < end


@given(paths, kinds)
def test_ranges_and_keys_on_the_way_to_a_path_are_those_of_its_beginnings(
    path: list[str], kind: bytes
) -> None:
    beginnings = [path[:length] for length in range(1, len(path) + 1)]
    assert keys.children_upwards(path, kind) == [keys.children(part, kind) for part in beginnings]
    assert keys.entry_keys_upwards(path, kind) == [
        keys.entry_key(part[:-1], kind, part[-1]) for part in beginnings
    ]


@given(hostile, hostile)
def test_ordinary_names_are_listed_in_the_order_of_their_code_points(a: str, b: str) -> None:
    assume(a != b and min(a + b) > "\x03")
    assert (keys.entry_key([], b"t", a) < keys.entry_key([], b"t", b)) == (a < b)


def test_the_root_and_a_part_without_text_are_different_paths() -> None:
    assert keys.encode_path([]) == b""
    assert keys.encode_path([""]) == b"\x02"
    assert keys.encode_path(["", ""]) == b"\x02\x02"


@given(st.binary(max_size=12))
def test_bytes_are_a_key_in_one_way_or_refused(data: bytes) -> None:
    try:
        path, kind, name = keys.decode_key(data)
    except CorruptionError:
        return
    assert keys.entry_key(path, kind, name) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02a",
        b"\x01",
        b"a\x01tb",
        b"\x02a\x01tb\x02",
        b"\x02a\x03\x01tb",
        b"\x01t\x00",
        b"\x01t\x00\x08",
    ],
)
def test_bytes_that_are_not_a_key_are_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        keys.decode_key(data)


def test_a_key_of_4_kib_is_the_longest() -> None:
    assert len(keys.entry_key([], b"t", "a" * 4094)) == keys.MAX_KEY_BYTES == 4096
    with pytest.raises(ObjectTooLargeError, match="4097 bytes"):
        keys.entry_key([], b"t", "a" * 4095)
    with pytest.raises(ObjectTooLargeError):
        keys.entry_key(["\x00" * 1500, "\x01" * 1500], b"t", "a")


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb"])
def test_the_error_for_a_lone_surrogate_contains_the_name(name: str) -> None:
    with pytest.raises(InputError, match="lone surrogate"):
        keys.entry_key([], b"t", name)
    with pytest.raises(InputError, match="lone surrogate"):
        keys.encode_path([name])


@pytest.mark.parametrize("kind", [b"", b"tt"])
def test_a_kind_is_one_byte(kind: bytes) -> None:
    with pytest.raises(InputError, match="one byte"):
        keys.entry_key([], kind, "a")
    with pytest.raises(InputError, match="one byte"):
        keys.children([], kind)


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_nothing_lies_between_a_key_and_the_one_after(key: bytes, other: bytes) -> None:
    assert key < keys.key_after(key)
    assert not key < other < keys.key_after(key)
