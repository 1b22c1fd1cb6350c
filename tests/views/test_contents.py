"""The view `objects` on an object of every registered type, small and in several parts, and of unknown types."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from polaris_spark import objects
from polaris_spark.catalog.metadata.logs import SEPARATOR
from polaris_spark.catalog.metadata.rows import LogItems, Piece
from polaris_spark.index import Branch, Leaf
from polaris_spark.index.shards import FrontCoded
from polaris_spark.objects import ObjectRow
from polaris_spark.spark.views import VIEWS
from tests.views.catalogs import Catalog, Row, rows

VIEWS["objects"]  # so that every type is registered
TYPES = {
    name: entry.cls for name, entry in objects._types.items() if entry.cls.__module__[:14] == "polaris_spark."
}
PART = objects.MAX_ROW_BYTES
TEXT = "é x"


class Sampler:
    """Makes objects of any type. Their texts have `length` characters."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.random = random.Random(length)

    def object(self, cls: type[Any]) -> Any:
        """An object of a registered type."""
        if issubclass(cls, LogItems):
            return cls(SEPARATOR.join(self.json() for _ in range(3)))
        if issubclass(cls, Piece):
            return cls(self.json())
        keys = sorted({self.bytes() for _ in range(5)})
        ids = [self.random.randrange(1, 2**60) for _ in keys]
        if cls is Leaf:
            return Leaf.of(keys, ids, [self.bytes() for _ in keys])
        if cls is Branch:
            return Branch(FrontCoded.of(keys[1:]), tuple(ids), tuple(range(len(ids))))
        return self.of(cls)

    def of(self, hint: Any) -> Any:
        """Return a value for a field of that type."""
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            return self.random.randrange(1, 2**60)
        if origin in (typing.Union, types.UnionType):
            return self.of(self.random.choice([one for one in inner if one is not type(None)]))
        if origin is typing.Literal:
            return self.random.choice(inner)
        if origin is tuple:
            return (
                tuple(self.of(inner[0]) for _ in range(2)) if inner[-1] is ... else tuple(map(self.of, inner))
            )
        if origin is dict:
            return {f"{TEXT}{i}": self.of(inner[1]) for i in range(2)}
        if issubclass(hint, msgspec.Struct):
            hints = typing.get_type_hints(hint, include_extras=True)
            return hint(**{f.name: self.of(hints[f.name]) for f in msgspec.structs.fields(hint)})
        made: dict[type, Any] = {
            str: TEXT + "x" * self.length,
            bytes: self.bytes(),
            bool: True,
            int: self.random.randrange(2**50),
        }
        return made[hint]

    def bytes(self) -> bytes:
        """Return bytes that are not UTF-8."""
        return b"\x00" + self.random.randbytes(8) + b"y" * self.length

    def json(self) -> bytes:
        """Return a JSON value."""
        return json.dumps({"id": self.random.randrange(2**60), "text": TEXT + "z" * self.length}).encode()


def shown(value: Any) -> Any:
    """Return the expected text of a value in the view, derived from its type alone."""
    if isinstance(value, LogItems):
        return [json.loads(item) for item in value.text.split(SEPARATOR)]
    if isinstance(value, Piece):
        return json.loads(value.text)
    if isinstance(value, Leaf):
        return {"keys": shown(value.keys), "pointers": list(value.pointers), "values": shown(value.values)}
    if isinstance(value, Branch):
        names = ("separators", "children", "counts")
        return {name: shown(getattr(value, name)) for name in names}
    if isinstance(value, msgspec.Struct):
        hidden = getattr(type(value), "HIDDEN", ())
        names = [f.name for f in msgspec.structs.fields(type(value))]
        return {name: "***" if name in hidden else shown(getattr(value, name)) for name in names}
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    return {k: shown(v) for k, v in value.items()} if isinstance(value, dict) else value


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """A catalog in whose store tests write further objects."""
    return Catalog(tmp_path_factory.mktemp("contents") / "c.db")


def _put(catalog: Catalog, id: int, data: bytes) -> None:
    parts = [ObjectRow(id, n, data[n * PART : (n + 1) * PART]) for n in range(-(-len(data) // PART))]
    catalog.session.connection.backend.write_objects(catalog.session.catalog.references.store.realm, parts)


def _shown(catalog: Catalog, id: int) -> Row:
    [row] = [row for row in rows("objects", store=catalog.store, content="true") if row["id"] == id]
    return row


def test_a_worker_of_spark_knows_every_type_of_the_package_and_each_is_tried() -> None:
    package = Path(objects.__file__).parent
    modules = [
        path for path in package.rglob("*.py") if "testing" not in path.parts and path.stem != "objects"
    ]
    registered = {
        name for path in modules for name in re.findall(r'^@object_type\("(.+?)"', path.read_text(), re.M)
    }
    program = (
        "from polaris_spark.spark.views import VIEWS; VIEWS['objects']\n"
        "from polaris_spark import objects; print(*objects._types)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert set(loaded.split()) == registered <= set(TYPES)
    assert len(registered) >= 18


@pytest.mark.parametrize("length", [0, PART], ids=["small", "large"])
def test_objects_of_every_type_are_shown_with_what_they_hold(catalog: Catalog, length: int) -> None:
    sampler = Sampler(length)
    made = {n + 1 + length: sampler.object(cls) for n, cls in enumerate(TYPES.values())}
    for id, value in made.items():
        _put(catalog, id, objects.encode(value))
    found = {row["id"]: row for row in rows("objects", store=catalog.store, content="true", splits="3")}
    for (id, value), name in zip(made.items(), TYPES, strict=True):
        data, row = objects.encode(value), found[id]
        format, parts, header_length = struct.unpack_from(">BHI", data)
        type, revision, strong, weak = msgspec.msgpack.decode(data[7 : 7 + header_length])
        assert (format, row["type"], row["revision"], row["error"]) == (1, type, revision, None), name
        assert (row["parts"], row["bytes"]) == (parts, len(data)), name
        assert parts == -(-len(data) // PART), name
        assert (row["strong_ids"], row["weak_ids"]) == (strong, weak), name
        assert json.loads(row["content"]) == shown(value), name


def test_content_is_read_only_where_it_is_asked_for(catalog: Catalog) -> None:
    for options in ({}, {"content": "false"}):
        assert {row["content"] for row in rows("objects", store=catalog.store, **options)} == {None}


@pytest.mark.parametrize("size", [10, 2 * PART + 10])
def test_a_type_that_is_not_installed_is_listed_with_its_name(catalog: Catalog, size: int) -> None:
    header = msgspec.msgpack.encode(["colour", 3, [5, 2**60], [7]])
    parts = -(-(7 + len(header) + size) // PART)
    data = struct.pack(">BHI", 1, parts, len(header)) + header + b"\xc1" * size
    _put(catalog, 2**50 + size, data)
    row = _shown(catalog, 2**50 + size)
    assert (row["type"], row["revision"], row["parts"], row["bytes"]) == ("colour", 3, parts, len(data))
    assert (row["strong_ids"], row["weak_ids"]) == ([5, 2**60], [7])
    assert (row["content"], row["error"]) == (None, None)


def test_a_later_revision_is_shown_as_far_as_it_is_known(catalog: Catalog) -> None:
    header = msgspec.msgpack.encode(["namespace", 9, [], []])
    payload = msgspec.msgpack.encode([5, 6, "ann", {"k": "v"}, "a field of tomorrow"])
    _put(catalog, 2**51, struct.pack(">BHI", 1, 1, len(header)) + header + payload)
    row = _shown(catalog, 2**51)
    assert (row["revision"], row["error"]) == (9, None)
    known = {"entity_id": 5, "created": 6, "owner": "ann", "properties": {"k": "v"}}
    assert json.loads(row["content"]) == known


@pytest.mark.parametrize("type", ["leaf", "table"])
def test_unreadable_content_is_reported_with_the_reason(tmp_path: Path, type: str) -> None:
    catalog = Catalog(tmp_path / "c.db")
    header = msgspec.msgpack.encode([type, 1, [], []])
    payload = msgspec.msgpack.encode([[[0], [3], b"four"]])  # lengths that do not agree; no table either
    _put(catalog, 77, struct.pack(">BHI", 1, 1, len(header)) + header + payload)
    row = _shown(catalog, 77)
    assert (row["type"], row["content"]) == (type, None)
    assert "do not agree" in row["error"] if type == "leaf" else "cannot be decoded" in row["error"]
    assert len(rows("objects", store=catalog.store)) > 1
    catalog.session.close()
