"""Refs and properties of a table that are too large for its row. An index holds them, and the row has the index's root.

A row embeds its refs (branches and tags) while they take at most `BOUND` bytes. Larger refs move into an index, so that
neither a commit nor the row grows with the number of refs. The same applies separately to the properties. The row then
embeds only the values that are read without the index: the branch `main`, and the properties that the catalog itself
reads (`stays_in_row`). If a change leaves less than a quarter of the bound in an index, all values of this index move
back into the row. Rows of earlier releases, which embed everything, stay valid.

An index key is the name in UTF-8; a long name is cut and followed by its hash. The entry's value contains the name and
the value as a member of the JSON object `refs` or `properties` of the metadata, so that rendering only joins texts. The
entry of a ref points to the snapshot that the ref names.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from polaris_spark.catalog.metadata.rows import NewId, NewRows, ObjectReader, Overflow, Ref, Table
from polaris_spark.catalog.metadata.texts import encode, invalid
from polaris_spark.errors import CorruptionError
from polaris_spark.index import Entry, Index, IndexRoot

MAIN_REF = "main"
"""Name of the branch whose snapshot is the current snapshot of the table."""

BOUND = 2048
"""Maximum size of the refs (branches and tags) that a row embeds, in bytes. The properties have the same maximum.
Larger refs or properties move into an index."""
QUOTA = 2048
"""Maximum size of the part of an index that the row embeds, in bytes; it applies separately to the index of refs and
the index of properties. This part holds the latest changes. Above this size, changes move from the row into the index's
shards."""
_RETURN_DIVISOR = 4
"""Indexed values move back into the row if their size in bytes, times this number, is below `BOUND`."""

_LONGEST_NAME = 1024
_ORDER_BYTES = 8
_CUT = b"\xff"
"""Byte between a name that was cut and its hash, in an index key. UTF-8 text never contains this byte."""

_ALWAYS_EMBEDDED = (
    "encryption.",
    "gc.",
    "history.",
    "polaris.",
    "write.data.",
    "write.folder-storage.",
    "write.metadata.",
    "write.object-storage.",
)
_METRICS_OF_COLUMNS = "write.metadata.metrics."

V = TypeVar("V")


def stays_in_row(name: str) -> bool:
    """Return whether the row embeds this property even if an index holds other properties.

    True for the properties that the catalog itself reads: retention, locations, switches. `Table.properties` always
    contains them, so that code that does not read the index, such as the search for orphan files, still sees them.
    Stored rows depend on this rule: a different rule needs a new revision of the rows.
    """
    return name.startswith(_ALWAYS_EMBEDDED) and not name.startswith(_METRICS_OF_COLUMNS)


def key_of(name: str) -> bytes:
    """Return the index key of a property, branch or tag with this name.

    Raises:
        BadRequestError: the name is not valid Unicode.
    """
    try:
        key = name.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"Cannot write text that is not valid Unicode: {error}") from error
    return key if len(key) <= _LONGEST_NAME else key[:_LONGEST_NAME] + _CUT + blake2b(key).digest()


class Codec(Protocol[V]):
    """Conversion of refs or of properties to and from index entries."""

    def stays(self, name: str) -> bool:
        """Return whether the row embeds the value of this name even if an index holds other values."""

    def size(self, name: str, value: V) -> int:
        """Return the size of a name and its value, in bytes."""

    def encode(self, name: str, value: V) -> Entry:
        """Return the index entry of a name and its value.

        Raises:
            BadRequestError: the name or the value is not valid Unicode.
        """

    def decode(self, pointer: int, value: bytes) -> tuple[str, V]:
        """Return the name and the ref or property that an index entry holds. This is the inverse of `encode`.

        Args:
            pointer: the entry's pointer.
            value: the entry's value, as bytes.
        Raises:
            CorruptionError: the entry cannot be decoded.
        """


_decode_property = msgspec.json.Decoder(dict[str, str]).decode
_decode_ref = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_GARBLED = (msgspec.MsgspecError, ValueError, RecursionError)


class _Named(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    snapshot_id: int


_decode_named = msgspec.json.Decoder(_Named).decode


class _Properties:
    """Codec of properties. The value of an entry is the member `"name":"value"` of the JSON object `properties`."""

    def stays(self, name: str) -> bool:
        return stays_in_row(name)

    def size(self, name: str, value: str) -> int:
        return _utf8_bytes(name) + _utf8_bytes(value)

    def encode(self, name: str, value: str) -> Entry:
        return Entry(0, encode(name) + b":" + encode(value))

    def decode(self, pointer: int, value: bytes) -> tuple[str, str]:
        try:
            [found] = _decode_property(b"{%b}" % value).items()
        except _GARBLED as error:
            raise CorruptionError(f"the index of a table's properties cannot be decoded: {error}") from error
        return found


class _Refs:
    """Codec of branches and tags. The value of an entry is the snapshot's sort key in the array `snapshots`, in eight
    bytes, then the member `"name":{...}` of the JSON object `refs`. The entry points to the snapshot."""

    def stays(self, name: str) -> bool:
        return name == MAIN_REF

    def size(self, name: str, value: Ref) -> int:
        return _utf8_bytes(name) + len(value.text)

    def encode(self, name: str, value: Ref) -> Entry:
        order = value.order.to_bytes(_ORDER_BYTES, "big")
        return Entry(value.snapshot, order + encode(name) + b":" + value.text)

    def decode(self, pointer: int, value: bytes) -> tuple[str, Ref]:
        try:
            [(name, raw)] = _decode_ref(b"{%b}" % value[_ORDER_BYTES:]).items()
            snapshot_id = _decode_named(raw).snapshot_id
        except _GARBLED as error:
            raise CorruptionError(f"the index of a table's refs cannot be decoded: {error}") from error
        order = int.from_bytes(value[:_ORDER_BYTES], "big")
        return name, Ref(name, snapshot_id, bytes(raw), order, pointer)


PROPERTY_CODEC: Codec[str] = _Properties()
REF_CODEC: Codec[Ref] = _Refs()


class Frozen(NamedTuple, Generic[V]):
    """Refs or properties as stored: those that the row embeds, and the index of the others (None if there are none)."""

    embedded: Mapping[str, V]
    others: Overflow | None


class SpilledValues(MutableMapping[str, V]):
    """Mapping from names to the refs or properties of a draft. An index holds most of them.

    A lookup reads only the needed parts of the index.
    """

    def __init__(
        self, embedded: Mapping[str, V], others: Overflow, reader: ObjectReader, codec: Codec[V]
    ) -> None:
        self._codec = codec
        self._embedded = dict(embedded)
        self._others = others
        self._index = Index(others.index, reader.read_shards)
        self._changed: dict[str, V | None] = {}
        """Changes that are not yet in the index: the new value of each name, or None for a removed value."""
        self._read: dict[str, V | None] = {}
        """Values of the names that were looked up in the index; None for a name that is not in it."""
        self._count, self._size = others.count, others.size

    def __getitem__(self, name: str) -> V:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name, or `default` if the name has no value."""
        found = self._find(name)
        return default if found is None else found

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def _find(self, name: str) -> V | None:
        if self._codec.stays(name):
            return self._embedded.get(name)
        if name in self._changed:
            return self._changed[name]
        if name not in self._read:
            entry = self._index.get(key_of(name))
            self._read[name] = None if entry is None else self._codec.decode(*entry)[1]
        return self._read[name]

    def __setitem__(self, name: str, value: V) -> None:
        if self._codec.stays(name):
            self._embedded[name] = value
            return
        self._forget(name)
        self._count += 1
        self._size += self._codec.size(name, value)
        self._changed[name] = value

    def __delitem__(self, name: str) -> None:
        if self._codec.stays(name):
            del self._embedded[name]
        elif self._forget(name):
            self._changed[name] = None
        else:
            raise KeyError(name)

    def _forget(self, name: str) -> bool:
        """Subtract the current value of a name from the totals of the index. Return whether the name has a value."""
        before = self._find(name)
        if before is None:
            return False
        self._count -= 1
        self._size -= self._codec.size(name, before)
        return True

    def __len__(self) -> int:
        return len(self._embedded) + self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def items(self) -> ItemsView[str, V]:
        """Return all names with their values. This reads the whole index."""
        return self.all().items()

    def values(self) -> ValuesView[V]:
        """Return all values. This reads the whole index."""
        return self.all().values()

    def all(self) -> dict[str, V]:
        """Return all values by name, those in the row first. This reads the whole index."""
        found = dict(self._embedded)
        _, pointers, values = self._index.columns()
        found.update(map(self._codec.decode, pointers, values))
        for name, value in self._changed.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = value
        return found

    @property
    def size(self) -> int:
        """Size of the names and values in the row and the index, in bytes."""
        return self._size + _size(self._embedded, self._codec)

    def replace(self, change: Callable[[V], V]) -> None:
        """Replace the values in the row, and those waiting to be written to the index, by `change(value)`.

        `change` must return a value of the same size. Values that are already in the index stay as they are.
        """
        self._embedded = {name: change(value) for name, value in self._embedded.items()}
        for name, value in self._changed.items():
            if value is not None:
                self._changed[name] = change(value)

    def freeze(self, new_id: NewId, rows: NewRows, bound: float) -> Frozen[V]:
        """Return the values that the row embeds, and the index of the others; add new shards to `rows`.

        If the indexed values take less than a quarter of `bound` bytes, all of them move back into the row. Call this
        method only once.
        """
        if not self._count or self._size * _RETURN_DIVISOR < bound:
            return Frozen(self.all(), None)
        if not self._changed:
            return Frozen(self._embedded, self._others)
        return Frozen(self._embedded, self._written(new_id, rows))

    def _written(self, new_id: NewId, rows: NewRows) -> Overflow:
        for name, value in self._changed.items():
            if value is None:
                self._index.remove(key_of(name))
            else:
                self._index.put(key_of(name), self._codec.encode(name, value))
        root, shards = self._index.freeze(QUOTA, new_id)
        rows.extend(shards)
        return Overflow(root, self._count, self._size)


def spill(
    values: Mapping[str, V], reader: ObjectReader, codec: Codec[V], bound: float, new_id: NewId, rows: NewRows
) -> Frozen[V]:
    """Return the values that a row embeds, and a new index of the others; add new shards to `rows`.

    The row embeds all values if the values that may move into an index take at most `bound` bytes.

    Args:
        values: all values; none of them is in an index.
    """
    if _size(values, codec) <= bound:
        return Frozen(values, None)
    others = {name: value for name, value in values.items() if not codec.stays(name)}
    if _size(others, codec) <= bound:
        return Frozen(values, None)
    embedded = {name: value for name, value in values.items() if codec.stays(name)}
    spilled = SpilledValues(embedded, Overflow(IndexRoot(), 0, 0), reader, codec)
    for name in sorted(others):
        spilled[name] = others[name]
    return spilled.freeze(new_id, rows, 0)


def all_refs(table: Table, reader: ObjectReader) -> tuple[Ref, ...]:
    """Return the branches and tags of a table, those in its row first.

    Raises:
        CorruptionError: a shard of their index is missing or unreadable.
    """
    if table.more_refs is None:
        return table.refs
    return (*table.refs, *(ref for _, ref in _decoded(table.more_refs, reader, REF_CODEC)))


def all_properties(table: Table, reader: ObjectReader) -> dict[str, str]:
    """Return the properties of a table, those in its row first.

    Raises:
        CorruptionError: a shard of their index is missing or unreadable.
    """
    if table.more_properties is None:
        return table.properties
    return table.properties | dict(_decoded(table.more_properties, reader, PROPERTY_CODEC))


def _decoded(others: Overflow, reader: ObjectReader, codec: Codec[V]) -> Iterator[tuple[str, V]]:
    _, pointers, values = Index(others.index, reader.read_shards).columns()
    return map(codec.decode, pointers, values)


class RenderedRefs(NamedTuple):
    """The branches and tags of a table, as JSON for its metadata."""

    members: list[bytes]
    """Members `"name":{...}` of the JSON object `refs`."""
    snapshots: set[tuple[int, int]]
    """(sort key in the JSON array `snapshots`, pointer) of each snapshot that a branch or tag references."""


def rendered_refs(table: Table, reader: ObjectReader) -> RenderedRefs:
    """Return the branches and tags of a table as JSON. Entries of the index are copied without decoding.

    Raises:
        CorruptionError: a shard of their index is missing or unreadable.
    """
    members = [encode(ref.name) + b":" + ref.text for ref in table.refs]
    named = {(ref.order, ref.snapshot) for ref in table.refs}
    if table.more_refs is not None:
        _, pointers, values = Index(table.more_refs.index, reader.read_shards).columns()
        members += [value[_ORDER_BYTES:] for value in values]
        orders = [value[:_ORDER_BYTES] for value in values]
        named.update(
            (int.from_bytes(order, "big"), id) for order, id in {*zip(orders, pointers, strict=True)}
        )
    return RenderedRefs(members, named)


def rendered_properties(table: Table, reader: ObjectReader) -> bytes:
    """Return the properties of a table as a JSON object. Entries of the index are copied without decoding.

    Raises:
        CorruptionError: a shard of their index is missing or unreadable.
    """
    own = encode(table.properties)
    if table.more_properties is None:
        return own
    values = Index(table.more_properties.index, reader.read_shards).columns().values
    members = [own[1:-1], *values] if table.properties else values
    return b"{%b}" % b",".join(members)


def current_piece(table: Table, reader: ObjectReader) -> int:
    """Return the pointer to the object of the current snapshot.

    Return 0 if there is no current snapshot, or no branch or tag references it.

    The index of refs is read only if the row has no ref to the current snapshot, as in an imported table without the
    branch `main`.

    Raises:
        CorruptionError: a shard of the index of refs is missing or unreadable.
    """
    current = table.current_snapshot_id
    if current is None:
        return 0
    own = next((ref.snapshot for ref in table.refs if ref.snapshot_id == current), 0)
    return own or next((ref.snapshot for ref in all_refs(table, reader) if ref.snapshot_id == current), 0)


def _size(values: Mapping[str, V], codec: Codec[V]) -> int:
    return sum([codec.size(name, value) for name, value in values.items()])


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
