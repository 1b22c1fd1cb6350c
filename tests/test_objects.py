"""Encoding of objects as rows: round trips, headers, and compatibility between releases."""

from __future__ import annotations

import struct
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polaris_spark import objects
from polaris_spark.backends.base import MAX_ROW_BYTES
from polaris_spark.errors import CorruptionError, InputError, NewerFormatError, ObjectTooLargeError
from polaris_spark.objects import Decoded, Header, Strong, Weak, object_type


class Piece(msgspec.Struct, frozen=True, array_like=True):
    target: Strong
    name: str


@object_type("test-node", revision=2)
class Node(msgspec.Struct, frozen=True, array_like=True):
    child: Strong
    parent: Weak
    children: tuple[Strong, ...] = ()
    skips: tuple[Weak, ...] = ()
    pieces: tuple[Piece, ...] = ()
    piece: Piece | None = None
    blob: bytes = b""
    added: str = "default of revision 2"


@object_type("test-plain", revision=1)
class Plain(msgspec.Struct, frozen=True, array_like=True):
    text: str


def raw_row(
    type: str, revision: int, strong: list[int], weak: list[int], payload: object, format: int = 1
) -> bytes:
    """Return a row built from the format's definition, without the module under test."""
    header = msgspec.msgpack.encode([type, revision, strong, weak])
    return struct.pack(">BHI", format, 1, len(header)) + header + msgspec.msgpack.encode(payload)


ids = st.integers(0, 2**63 - 1)
pieces = st.builds(Piece, ids, st.text())
nodes = st.builds(
    Node,
    child=ids,
    parent=ids,
    children=st.lists(ids).map(tuple),
    skips=st.lists(ids).map(tuple),
    pieces=st.lists(pieces).map(tuple),
    piece=st.none() | pieces,
    blob=st.binary(),
    added=st.text(),
)


@given(nodes)
def test_an_object_comes_back_as_it_was(node: Node) -> None:
    assert objects.decode(objects.encode(node), "key").value == node


@given(nodes)
def test_the_header_names_exactly_the_objects_pointed_to(node: Node) -> None:
    header = objects.decode_header(objects.encode(node), "key")
    nested = [piece.target for piece in (*node.pieces, *([node.piece] if node.piece else []))]
    assert sorted(header.strong) == sorted(id for id in (node.child, *node.children, *nested) if id)
    assert sorted(header.weak) == sorted(id for id in (node.parent, *node.skips) if id)
    assert (header.type, header.revision) == ("test-node", 2)


def test_ids_are_only_in_the_header() -> None:
    id = 0x7A7B7C7D7E7F7071
    data = objects.encode(Node(id, id, (id, id), (id,), (Piece(id, "x"),), Piece(id, "y")))
    length = struct.unpack_from(">BHI", data)[2]
    assert id.to_bytes(8, "big") in data[: 7 + length]
    assert id.to_bytes(8, "big") not in data[7 + length :]


def test_the_bytes_of_a_row_are_those_of_its_definition() -> None:
    row = raw_row("test-plain", 1, [], [], ["hello"])
    assert objects.encode(Plain("hello")) == row
    assert objects.decode(row, "key") == Decoded(Header("test-plain", 1), Plain("hello"))


def test_a_small_object_is_one_row_and_a_large_one_several() -> None:
    for size in (0, 1, MAX_ROW_BYTES - 200, MAX_ROW_BYTES, 3 * MAX_ROW_BYTES):
        node = Node(1, 2, blob=bytes(size))
        data = objects.encode(node)
        rows = objects.rows_of(7, data)
        assert [(row.id, row.part) for row in rows] == [(7, part) for part in range(len(rows))]
        assert all(0 < len(row.value) <= MAX_ROW_BYTES for row in rows)
        assert objects.part_count(rows[0].value, "key") == len(rows) == -(-len(data) // MAX_ROW_BYTES)
        assert objects.decode_header(rows[0].value, "key").strong == (1,)
        assert objects.decode(b"".join(row.value for row in rows), "key").value == node


def test_an_object_of_exactly_one_full_row_is_one_row() -> None:
    overhead = len(objects.encode(Plain("x" * 100_000))) - 100_000
    data = objects.encode(Plain("x" * (MAX_ROW_BYTES - overhead)))
    assert len(data) == MAX_ROW_BYTES
    assert len(objects.rows_of(1, data)) == objects.part_count(data, "key") == 1
    assert len(objects.rows_of(1, objects.encode(Plain("x" * (MAX_ROW_BYTES - overhead + 1))))) == 2


def test_pointers_that_no_header_can_hold_are_refused() -> None:
    with pytest.raises(ObjectTooLargeError, match="points to 50000 other objects"):
        objects.encode(Node(0, 0, tuple(range(2**60, 2**60 + 50_000))))


def test_an_object_of_an_unknown_type_is_opaque_with_its_pointers() -> None:
    found = objects.decode(raw_row("plugin-thing", 9, [5, 6], [7], {"any": "payload"}), "key")
    assert found == Decoded(Header("plugin-thing", 9, (5, 6), (7,)), None)


def test_a_row_of_an_older_revision_has_defaults_for_what_it_lacks() -> None:
    found = objects.decode(raw_row("test-node", 1, [5], [6], [1, 1, [], [], [], None, b"blob"]), "key")
    assert found.value == Node(5, 6, blob=b"blob")
    objects.refuse_newer(found.header, "key")


def test_a_row_of_a_newer_revision_can_be_read_but_not_rewritten() -> None:
    found = objects.decode(raw_row("test-plain", 3, [], [], ["text", "field of revision 3"]), "key")
    assert found.value == Plain("text")
    with pytest.raises(
        NewerFormatError, match=r"realm/7 .* revision 3 of type .* is supported only up to revision 1 here"
    ):
        objects.refuse_newer(found.header, "realm/7")


def test_an_object_of_an_unknown_type_is_not_rewritten() -> None:
    with pytest.raises(NewerFormatError, match="not installed"):
        objects.refuse_newer(Header("plugin-thing", 1), "key")


def test_a_row_of_a_newer_format_is_refused() -> None:
    with pytest.raises(NewerFormatError, match="row format 2"):
        objects.decode(raw_row("test-plain", 1, [], [], ["x"], format=2), "realm/7")


@given(st.binary(max_size=40))
def test_the_error_for_bytes_that_are_not_a_row_contains_the_key(data: bytes) -> None:
    with pytest.raises((CorruptionError, NewerFormatError), match="realm/7"):
        objects.decode(data, "realm/7")


@given(st.integers(0, 60))
def test_the_error_for_a_truncated_row_contains_its_key(length: int) -> None:
    data = objects.encode(Node(1, 2, (3,), (), (Piece(4, "name"),), None, b"blob" * 20))
    with pytest.raises(CorruptionError, match="realm/7"):
        objects.decode(data[:length], "realm/7")


def test_a_pointer_that_the_header_does_not_have_is_corrupt() -> None:
    with pytest.raises(CorruptionError, match="realm/7"):
        objects.decode(raw_row("test-node", 2, [5], [], [9, 0]), "realm/7")


def test_a_type_name_belongs_to_one_class() -> None:
    with pytest.raises(InputError, match="already registered by Plain"):

        @object_type("test-plain", revision=1)
        class Other(msgspec.Struct, frozen=True, array_like=True):
            text: str

    assert objects.known_types()["test-plain"] == 1
    assert objects.type_name(Plain) == "test-plain"


def test_types_of_this_package_are_found_before_their_modules_are_imported() -> None:
    program = """
from polaris_spark import objects
known = objects.known_types()
assert set(objects.BUILT_IN) <= set(known), set(objects.BUILT_IN) - set(known)
import importlib, pkgutil, polaris_spark
for path in polaris_spark.__path__:
    for found in pkgutil.walk_packages([path], "polaris_spark."):
        if not found.name.startswith(("polaris_spark.testing", "polaris_spark.cli")):
            importlib.import_module(found.name)
modules = {name: one.cls.__module__ for name, one in objects._types.items()}
own = {name for name, module in modules.items() if not module.startswith("polaris_spark.testing.")}
assert own == set(objects.BUILT_IN), own ^ set(objects.BUILT_IN)
assert all(objects._types[name].cls.__module__ == module for name, module in objects.BUILT_IN.items())
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "name", ["table", "deleted-files", "expired-snapshots", "metrics-reports", "catalog"]
)
def test_a_type_is_found_by_its_name_in_a_process_that_imported_nothing_else(name: str) -> None:
    program = f"from polaris_spark import objects; assert objects._find({name!r}).name == {name!r}"
    subprocess.run([sys.executable, "-c", program], check=True)
