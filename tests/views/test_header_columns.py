"""Headers that are decoded in columns are equal to those that are decoded row by row, or are marked as undecodable."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polaris_spark import objects
from polaris_spark.errors import PolarisError
from polaris_spark.ids import MAX_ID
from polaris_spark.spark.views import header_columns

encode = msgspec.msgpack.encode


def row(header: bytes, *, parts: int = 1, payload: bytes = b"", length: int | None = None) -> bytes:
    """Return a row. `length` is a wrong header length for its preamble."""
    said = len(header) if length is None else length
    return struct.pack(">BHI", objects.FORMAT, parts, said) + header + payload


def by_columns(values: Sequence[bytes], length: int) -> list[objects.Header | None]:
    """Decode the headers in the first bytes of rows, in columns."""
    starts = pa.array([value[:length] for value in values], pa.binary())
    types, revisions = header_columns.types(starts)
    decoded, strong, weak = header_columns.pointers(starts)
    columns = (one.to_pylist() for one in (types, revisions, decoded, strong, weak))
    return [
        objects.Header(type, revision, tuple(strong), tuple(weak)) if type is not None and told else None
        for type, revision, told, strong, weak in zip(*columns, strict=True)
    ]


def by_rows(value: bytes) -> objects.Header | None:
    """Decode the header of one row; None if it cannot be read."""
    try:
        return objects.decode_header(value, "")
    except PolarisError:
        return None


own_ids = st.integers(2**32, MAX_ID)
"""Such as are made: an id has its time in its upper bits."""
any_numbers = own_ids | st.integers(0, 300) | st.integers(-(2**63), 2**64 - 1)
names = st.text(max_size=12) | st.text(min_size=20, max_size=60)
own_headers = st.tuples(
    st.text(max_size=8), st.integers(0, 127), st.lists(own_ids, max_size=40), st.lists(own_ids, max_size=20)
).map(encode)
any_headers = st.lists(
    names | any_numbers | st.lists(any_numbers | names, max_size=20) | st.none(), max_size=6
).map(encode) | st.tuples(names, any_numbers, st.lists(any_numbers), st.lists(any_numbers)).map(encode)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a row with some changed bytes, or a truncated one."""
    value = bytearray(row(draw(own_headers), payload=draw(st.binary(max_size=20))))
    for _ in range(draw(st.integers(0, 3))):
        value[draw(st.integers(0, len(value) - 1))] = draw(st.integers(0, 255))
    value[0] = objects.FORMAT  # the decoder of columns checks it first
    return bytes(value[: draw(st.integers(1, len(value)))])


rows = (
    st.builds(row, own_headers | any_headers, payload=st.binary(max_size=20))
    | st.builds(row, own_headers, payload=st.binary(max_size=20), length=st.integers(0, 2**32 - 1))
    | damaged()
    | st.binary(max_size=40).map(lambda rest: bytes([objects.FORMAT]) + rest)
)


@settings(deadline=None, max_examples=300)
@given(st.lists(rows, max_size=12), st.sampled_from([objects.TYPE_BYTES, 128, objects.MAX_ROW_BYTES]))
@example([], 128)
@example([b""], 128)
@example([b"", row(encode(["x", 1, [], []]))[:-1]], 128)
def test_decoding_in_columns_and_by_row_gives_the_same_headers(values: list[bytes], length: int) -> None:
    for value, told in zip(values, by_columns(values, length), strict=True):
        if told is not None:
            assert told == by_rows(value)


@settings(deadline=None)
@given(st.lists(st.builds(row, own_headers, payload=st.binary(max_size=20))))
def test_rows_of_the_packages_encoder_are_decoded(values: list[bytes]) -> None:
    told = by_columns(values, objects.MAX_ROW_BYTES)
    assert told == [by_rows(value) for value in values]
    assert None not in told


@pytest.mark.parametrize("count", [0, 15, 16, 30_000])
def test_many_pointers_are_decoded(count: int) -> None:
    ids = list(range(MAX_ID - count + 1, MAX_ID + 1))
    values = [row(encode(["x", 1, ids, []])), row(encode(["x", 1, [], ids]))]
    assert by_columns(values, objects.MAX_ROW_BYTES) == [by_rows(value) for value in values]
    assert by_columns(values, 128) == ([None, None] if count > 12 else [by_rows(value) for value in values])


def test_a_slice_of_rows_is_decoded_like_others() -> None:
    values = [row(encode(["x", n, [MAX_ID - n] * n, []])) for n in range(20)]
    starts = pa.array(values, pa.binary())[5:9]
    found: Any = header_columns.pointers(starts).strong
    assert found.to_pylist() == [[MAX_ID - n] * n for n in range(5, 9)]


@pytest.mark.parametrize(
    "pointers",
    [
        b"\x90\x91\x05",  # a number of one byte
        b"\x91\xd3" + bytes(8) + b"\x90",  # a signed one
        b"\xdd\x00\x00\x00\x00\x90",  # a length of four bytes
        b"\x90",  # one array only
        b"\x90\x90\x90",  # bytes behind the second one
        b"\x91\xcf\x80" + bytes(7) + b"\x90",  # an id that no column holds
    ],
)
def test_other_shapes_are_left_to_the_decoder_of_one_row(pointers: bytes) -> None:
    value = row(b"\x94\xa1x\x01" + pointers)
    assert by_columns([value], 128) == [None]
