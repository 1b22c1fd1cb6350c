"""Object types, and the encoding of objects as rows.

The value of an object consists of a preamble (format byte, number of parts, header length), a header (type name,
revision, and the ids that the object points to, in separate lists of strong and weak pointers), and a MessagePack
payload. The payload contains each pointer as its position in the header, counted from 1; 0 means "none". Code that
finds garbage, or checks or copies rows, reads only headers, so it also works for types that are not installed.

An object type is a frozen `msgspec.Struct` with `array_like=True`, registered under a short stable name, as in the
example below. With `gc=False`, Python's garbage collector skips the objects. They cannot form reference cycles, because
they are immutable.

    @object_type("example", revision=1)
    class Example(msgspec.Struct, frozen=True, array_like=True, gc=False):
        child: Strong            # an id, or 0
        others: tuple[Strong, ...]
        label: str

Nested structs, and tuples of nested structs, can contain pointers, too. A later revision must only append fields, and
they must have defaults. Third parties register types with the entry-point group `polaris_spark.object_types`, in which
each entry names a module to import.
"""

from __future__ import annotations

import importlib
import struct as binary
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec

from polaris_spark.errors import CorruptionError, InputError, NewerFormatError, ObjectTooLargeError
from polaris_spark.ids import MAX_ID
from polaris_spark.pointers import Strong as Strong  # imported from here by modules that define object types
from polaris_spark.pointers import Weak as Weak
from polaris_spark.pointers import Wire, wire_of

FORMAT = 1
"""Format byte of rows that this release writes."""

ObjectId = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
"""An object id that is not a pointer, because the object may not exist; 0 for none."""

MAX_ROW_BYTES = 350_000
"""Maximum size of the value of a row of `objects` or `references`, in bytes. Every supported database accepts values of
this size."""


class ObjectRow(NamedTuple):
    """A row of the table `objects` within a realm: one part of an object."""

    id: ObjectId
    part: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    value: bytes


S = TypeVar("S", bound=msgspec.Struct)

_PREAMBLE = binary.Struct(">BHI")

_GARBLED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding raises for bytes that are not a valid encoding."""

ONE_PART = _PREAMBLE.pack(FORMAT, 1, 0)[:3]
"""First bytes of the row of an object with a single part: format byte and number of parts."""


_Revision = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Id = Annotated[int, msgspec.Meta(ge=0, le=MAX_ID)]
"""An object id, in the range that databases and columns of system views can contain."""


class Header(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The header of an object's first row."""

    type: str
    revision: _Revision
    strong: tuple[_Id, ...] = ()
    weak: tuple[_Id, ...] = ()


TAG = slice(_PREAMBLE.size, _PREAMBLE.size + 2)
"""Slice of a row that contains the first two bytes of the header. `end_of_type` needs only these bytes."""

TYPE_BYTES = TAG.stop + 31 + 1
"""Number of bytes at the start of an object's first row that contain its type and revision, for all object types of
this package. Types of other packages can need more bytes, if their names have more than 31 bytes or their revisions are
above 127."""


def end_of_type(tag: bytes) -> int | None:
    """Return the position in a row at which its type and revision end. Return None if only `decode_header` can find
    them.

    Args:
        tag: the bytes of the row at `TAG`.
    """
    is_short = len(tag) == 2 and tag[0] == _FOUR_FIELDS and _SHORT_TEXT <= tag[1] < _SHORT_TEXT + 32
    return TAG.stop + tag[1] - _SHORT_TEXT + 1 if is_short else None


def decode_type(start: bytes) -> tuple[str, int] | None:
    """Return (type name, revision) of a row. Return None if only `decode_header` can find them.

    Args:
        start: the bytes of the row from `TAG.start` to the position that `end_of_type` returns.
    """
    try:
        return _decode_type(_TWO_FIELDS + start[1:])
    except _GARBLED:
        return None


class Decoded(msgspec.Struct, frozen=True, gc=False):
    """A decoded object (`value`) and its header. `value` is None if the object's type is not installed."""

    header: Header
    value: msgspec.Struct | None


class _Type(NamedTuple):
    name: str
    revision: int
    cls: type[msgspec.Struct]
    wire: Wire
    appended: tuple[tuple[str, ...], ...]
    """Names of the fields that the latest revisions appended: one tuple per revision, the newest revision last."""

    def written(self, value: msgspec.Struct) -> int:
        """Return the revision in which to write an object: the earliest revision that has every nonempty field of the
        object. So the object can be written to a realm even if some writers of the realm do not support the newest
        revision."""
        revision = self.revision
        for names in reversed(self.appended):
            for name in names:
                if getattr(value, name):
                    return revision
            revision -= 1
        return revision


_types: dict[str, _Type] = {}
_by_class: dict[type, _Type] = {}
_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(Header).decode
_decode_type = msgspec.msgpack.Decoder(tuple[str, _Revision]).decode
_FOUR_FIELDS, _TWO_FIELDS, _SHORT_TEXT = (
    0x94,
    b"\x92",
    0xA0,
)  # MessagePack tags of arrays, and of texts of up to 31 bytes


def object_type(
    name: str, *, revision: int, appended: tuple[tuple[str, ...], ...] = ()
) -> Callable[[type[S]], type[S]]:
    """Return a class decorator that registers a struct as an object type.

    Args:
        name: short stable name, never reused for another type.
        revision: revision of the fields, increased by one whenever fields are appended.
        appended: names of the fields that each of the latest revisions appended, one tuple per revision, the newest
            last. If all fields that a revision appended are empty in an object, the object is written in the previous
            revision, so that older releases can read it. List only revisions for which an empty field means the same as
            a missing field, and only those after the last revision for which it does not.
    Raises:
        InputError: another class is registered under the name (raised by the decorator).
    """

    def register(cls: type[S]) -> type[S]:
        known = _types.get(name)
        if known is not None and known.cls.__qualname__ != cls.__qualname__:
            raise InputError(f"object type {name!r} is already registered by {known.cls.__qualname__}")
        _types[name] = _by_class[cls] = _Type(name, revision, cls, wire_of(cls), appended)
        return cls

    return register


BUILT_IN: Final = {
    "answer": "polaris_spark.commits.intent_rows",
    "authorizer": "polaris_spark.access.rows",
    "branch": "polaris_spark.index.shards",
    "catalog": "polaris_spark.catalog.rows",
    "catalog-role": "polaris_spark.access.rows",
    "commit": "polaris_spark.commits.rows",
    "deleted-files": "polaris_spark.maintenance.deletion_records",
    "entries": "polaris_spark.commits.rows",
    "expired-snapshots": "polaris_spark.catalog.tables.snapshot_expiry",
    "intent": "polaris_spark.commits.intent_rows",
    "leaf": "polaris_spark.index.shards",
    "log": "polaris_spark.catalog.metadata.rows",
    "log-part": "polaris_spark.catalog.branches.archived_log",
    "metrics-reports": "polaris_spark.catalog.catalogs.metrics",
    "namespace": "polaris_spark.catalog.rows",
    "partition-spec": "polaris_spark.catalog.metadata.rows",
    "partition-statistics": "polaris_spark.catalog.metadata.rows",
    "policy": "polaris_spark.maintenance.policies.rows",
    "principal": "polaris_spark.access.rows",
    "principal-role": "polaris_spark.access.rows",
    "queued-task": "polaris_spark.maintenance.queue.rows",
    "run": "polaris_spark.maintenance.queue.rows",
    "schema": "polaris_spark.catalog.metadata.rows",
    "snapshot": "polaris_spark.catalog.metadata.rows",
    "sort-order": "polaris_spark.catalog.metadata.rows",
    "statistics": "polaris_spark.catalog.metadata.rows",
    "table": "polaris_spark.catalog.metadata.rows",
    "token-key": "polaris_spark.access.rows",
    "unloaded": "polaris_spark.catalog.rows",
    "view": "polaris_spark.catalog.metadata.rows",
    "view-version": "polaris_spark.catalog.metadata.rows",
}
"""The object types of this package: from the type's name to the module that defines the type. A process imports the
module when it decodes the first object of the type."""


@cache
def load_plugins() -> None:
    """Import the modules named by the entry-point group `polaris_spark.object_types`, once per process."""
    import importlib.metadata  # slow, so imported only if an unknown type occurs

    for entry in importlib.metadata.entry_points(group="polaris_spark.object_types"):
        entry.load()


def known_types() -> dict[str, int]:
    """Return the newest revision that this process supports, by type name, for all types of this package and of
    plugins."""
    for module in dict.fromkeys(BUILT_IN.values()):
        importlib.import_module(module)
    load_plugins()
    return {name: entry.revision for name, entry in _types.items()}


def class_of(name: str) -> type[msgspec.Struct]:
    """Return the class of an object type of this package or of a plugin, by the type's name.

    Raises:
        KeyError: there is no such type.
    """
    entry = _types.get(name) or _find(name)
    if entry is None:
        raise KeyError(name)
    return entry.cls


def revision_of(cls: type[msgspec.Struct]) -> int:
    """Return the newest revision of an object type that this process supports."""
    return _by_class[cls].revision


def written_revision(value: msgspec.Struct) -> int:
    """Return the revision in which this process writes an object: the earliest revision that has every nonempty field
    of the object."""
    return _by_class[type(value)].written(value)


def type_name(cls: type[msgspec.Struct]) -> str:
    """Return the registered name of an object type."""
    return _by_class[cls].name


def encode(value: msgspec.Struct) -> bytes:
    """Return the encoded bytes of an object, not yet divided into the parts that rows store (`rows_of`).

    Raises:
        ObjectTooLargeError: the object points to more objects than its header can list in one row.
    """
    return encode_with_header(value)[1]


def encode_with_header(value: msgspec.Struct) -> tuple[Header, bytes]:
    """Return (header, encoded bytes) of an object. The bytes are the result of `encode`.

    Raises:
        ObjectTooLargeError: the object points to more objects than its header can list in one row.
    """
    header, packed = _packed(value)
    payload, encoded = _encode(packed), _encode(header)
    if len(encoded) + _PREAMBLE.size > MAX_ROW_BYTES:
        raise ObjectTooLargeError(
            f"an object of type {header.type!r} points to {len(header.strong) + len(header.weak)} other "
            f"objects; the list of their ids must fit in one row of {MAX_ROW_BYTES} bytes"
        )
    size = _PREAMBLE.size + len(encoded) + len(payload)
    parts = -(-size // MAX_ROW_BYTES)
    return header, b"".join((_PREAMBLE.pack(FORMAT, parts, len(encoded)), encoded, payload))


def described(value: msgspec.Struct) -> Decoded:
    """Return an object with the header with which it would be written."""
    return Decoded(_packed(value)[0], value)


def _packed(value: msgspec.Struct) -> tuple[Header, Any]:
    """Return the header of an object, and the value that is encoded after the header."""
    entry = _by_class[type(value)]
    strong: list[int] = []
    weak: list[int] = []
    packed = entry.wire.pack(value, strong, weak)
    revision = entry.written(value) if entry.appended else entry.revision
    return Header(entry.name, revision, tuple(strong), tuple(weak)), packed


def with_pointers(value: S, new_ids: Mapping[int, int]) -> S:
    """Return a copy of an object with some of its pointers replaced.

    Args:
        new_ids: maps old pointers to new pointers. Pointers that are not among its keys stay unchanged.
    """
    wire = _by_class[type(value)].wire
    strong: list[int] = []
    weak: list[int] = []
    payload = _encode(wire.pack(value, strong, weak))
    changed = (tuple([new_ids.get(id, id) for id in ids]) for ids in (strong, weak))
    return wire.unpack(wire.decode(payload), *changed)  # type: ignore[no-any-return]  # of the type of `value`


def rows_of(id: int, data: bytes) -> list[ObjectRow]:
    """Return the rows of an encoded object. Part 0 begins with the preamble and the header."""
    if len(data) <= MAX_ROW_BYTES:
        return [ObjectRow(id, 0, data)]
    starts = range(0, len(data), MAX_ROW_BYTES)
    return [ObjectRow(id, part, data[start : start + MAX_ROW_BYTES]) for part, start in enumerate(starts)]


def part_count(part_0: bytes, key: str) -> int:
    """Return the number of rows of an object.

    Args:
        part_0: value of the object's first row.
        key: name of the object, for error messages.
    """
    return _preamble(part_0, key)[0]


def decode_header(part_0: bytes, key: str) -> Header:
    """Return the header of an object, from its first row. `key` names the object in errors.

    Raises:
        CorruptionError: the bytes are not a row.
        NewerFormatError: this release does not support the format byte.
    """
    _, length = _preamble(part_0, key)
    try:
        return _decode_header(part_0[_PREAMBLE.size : _PREAMBLE.size + length])
    except _GARBLED as error:
        raise CorruptionError(f"object {key} has an unreadable header: {error}") from error


def decode(data: bytes, key: str) -> Decoded:
    """Decode an object from its bytes (all parts joined). `key` names the object in errors.

    Raises:
        CorruptionError: the bytes cannot be decoded.
        NewerFormatError: this release does not support the format byte.
    """
    header = decode_header(data, key)
    entry = _types.get(header.type) or _find(header.type)
    if entry is None:
        return Decoded(header, None)
    _, length = _preamble(data, key)
    try:
        wire = entry.wire.decode(memoryview(data)[_PREAMBLE.size + length :])
        return Decoded(header, entry.wire.unpack(wire, header.strong, header.weak))
    except (*_GARBLED, IndexError) as error:
        raise CorruptionError(f"object {key} of type {header.type!r} cannot be decoded: {error}") from error


def refuse_newer(header: Header, key: str) -> None:
    """Refuse to rewrite an object that a newer release wrote, because its unknown fields would be lost.

    Raises:
        NewerFormatError: the object's revision is higher than this process supports, or its type is unknown.
    """
    entry = _types.get(header.type) or _find(header.type)
    if entry is None or header.revision > entry.revision:
        known, allowed = "is not installed", "it cannot be changed"
        if entry is not None:
            known = f"is supported only up to revision {entry.revision}"
            allowed = "it can be read but not changed"
        raise NewerFormatError(
            f"object {key} has revision {header.revision} of type {header.type!r}, which {known} here: "
            f"{allowed}; use a release that supports revision {header.revision}"
        )


def _find(name: str) -> _Type | None:
    """Return the type named `name`, whose module is imported if necessary; None if the type is not installed."""
    if name not in _types:
        if name in BUILT_IN:
            importlib.import_module(BUILT_IN[name])
        else:
            load_plugins()
    return _types.get(name)


def _preamble(part_0: bytes, key: str) -> tuple[int, int]:
    if len(part_0) < _PREAMBLE.size:
        raise CorruptionError(
            f"the first row of object {key} has {len(part_0)} bytes; an object has at least {_PREAMBLE.size}"
        )
    format, parts, length = _PREAMBLE.unpack_from(part_0)
    if format != FORMAT:
        raise NewerFormatError(
            f"object {key} has row format {format}; this release can read only format {FORMAT}: use a newer release"
        )
    return parts, length
