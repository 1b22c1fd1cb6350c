"""The encoding of the fields of object types: a pointer is written as its position in the lists of the object's header.

`objects` explains headers. `wire_of` makes the functions that encode and decode the objects of a class. They replace
only pointers; msgspec encodes everything else.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec.structs import astuple

from polaris_spark.ids import MAX_ID

_RANGE: Final = msgspec.Meta(ge=0, le=MAX_ID)

Strong = Annotated[int, "strong", _RANGE]
"""A pointer that protects its target from deletion: an object id, or 0 for none."""

Weak = Annotated[int, "weak", _RANGE]
"""A pointer that does not protect its target from deletion: an object id, or 0 for none."""


class Wire(NamedTuple):
    """The encoding of a struct class."""

    cls: type[msgspec.Struct]
    """Class of the encoded form: the struct class itself if it has no pointers."""
    pack: Callable[[Any, list[int], list[int]], Any]
    """Takes an object and the lists of its strong and weak pointers. Returns what msgspec is to encode, and appends the
    object's pointers to the lists."""
    unpack: Callable[[Any, tuple[int, ...], tuple[int, ...]], Any]
    """Takes an object in encoded form, and its strong and weak pointers. Returns the object."""
    decode: Callable[[Any], Any]
    """Decodes bytes to an object in encoded form."""


class _Field(NamedTuple):
    """The encoding of a field. `pack` is called only for nonempty values, because empty values contain no pointers."""

    name: str
    wire_type: Any
    pack: Callable[[Any, list[int], list[int]], Any] | None
    unpack: Callable[[Any, tuple[int, ...], tuple[int, ...]], Any] | None
    is_weak: bool | None = None
    """For a field that is a single pointer: True if it is weak, False if it is strong. None for other fields."""


@cache
def wire_of(cls: type[msgspec.Struct]) -> Wire:
    """Return the encoding of a struct class."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [_field(f.name, hints[f.name]) for f in msgspec.structs.fields(cls)]
    if all(field.pack is None for field in fields):
        same = cls

        def keep(value: Any, _strong: Any, _weak: Any) -> Any:
            return value

        return Wire(same, keep, keep, msgspec.msgpack.Decoder(same).decode)
    defaults = {
        f.name: _wire_default(f, info) for f, info in zip(fields, msgspec.structs.fields(cls), strict=True)
    }
    shape = [
        (f.name, f.wire_type)
        if defaults[f.name] is msgspec.NODEFAULT
        else (f.name, f.wire_type, defaults[f.name])
        for f in fields
    ]
    wire = msgspec.defstruct(cls.__name__ + "Wire", shape, array_like=True, frozen=True, gc=False)
    return Wire(wire, _packer(cls, fields), _unpacker(cls, fields), msgspec.msgpack.Decoder(wire).decode)


def _wire_default(field: _Field, info: msgspec.structs.FieldInfo) -> Any:
    """Return the default of a field in encoded form. It is used for rows of a revision that lacks the field."""
    if info.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=info.default_factory)
    if info.default is msgspec.NODEFAULT or field.pack is None or not info.default:
        return info.default
    return msgspec.convert(field.pack(info.default, [], []), field.wire_type)


def _packer(cls: type[msgspec.Struct], fields: list[_Field]) -> Callable[[Any, list[int], list[int]], Any]:
    pointing = [(at, field.pack, field.is_weak) for at, field in enumerate(fields) if field.pack is not None]
    blank = None if any(info.required for info in msgspec.structs.fields(cls)) else cls()
    blank_values = () if blank is None else astuple(blank)

    def pack(value: Any, strong: list[int], weak: list[int]) -> Sequence[Any]:
        if value == blank:  # most indexes and logs of most tables are blank, and so contain no pointers
            return blank_values
        values = list(astuple(value))
        for position, pack_field, is_weak in pointing:
            found = values[position]
            if not found:
                continue
            if is_weak is None:
                values[position] = pack_field(found, strong, weak)
            else:  # does what `pack_field` does, but without a call, because most pointing fields are single pointers
                ids = weak if is_weak else strong
                ids.append(found)
                values[position] = len(ids)
        return values

    return pack


def _unpacker(cls: type[msgspec.Struct], fields: list[_Field]) -> Callable[[Any, Any, Any], Any]:
    names = [field.name for field in fields]
    by_name = any(p.kind is p.KEYWORD_ONLY for p in inspect.signature(cls).parameters.values())
    pointing = [(position, field.unpack) for position, field in enumerate(fields) if field.unpack is not None]

    def unpack(value: Any, strong: tuple[int, ...], weak: tuple[int, ...]) -> Any:
        values = list(astuple(value))
        for position, unpack_field in pointing:
            values[position] = unpack_field(values[position], strong, weak)
        return cls(**dict(zip(names, values, strict=True))) if by_name else cls(*values)

    return unpack


def _field(name: str, hint: Any) -> _Field:
    if hint in (Strong, Weak):
        return _pointer(name, weak=hint == Weak)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _tuple(name, hint, args[0])
    inner = _struct_of(hint)
    if inner is not None and wire_of(inner).cls is not inner:
        return _nested(name, wire_of(inner))
    return _Field(name, hint, None, None)


def _struct_of(hint: Any) -> type[msgspec.Struct] | None:
    """Return the struct class in the type `Struct` or `Struct | None`; None for other types."""
    found = [
        a for a in (typing.get_args(hint) or (hint,)) if isinstance(a, type) and issubclass(a, msgspec.Struct)
    ]
    return found[0] if len(found) == 1 and typing.get_origin(hint) is not tuple else None


def _pointer(name: str, *, weak: bool) -> _Field:
    def pack(id: int, strong_ids: list[int], weak_ids: list[int]) -> int:
        ids = weak_ids if weak else strong_ids
        ids.append(id)
        return len(ids)

    def unpack(position: int, strong_ids: tuple[int, ...], weak_ids: tuple[int, ...]) -> int:
        return (weak_ids if weak else strong_ids)[position - 1] if position else 0

    return _Field(name, int, pack, unpack, is_weak=weak)


def _tuple(name: str, hint: Any, item: Any) -> _Field:
    if item in (Strong, Weak):
        return _pointers(name, weak=item == Weak)
    inner = _struct_of(item)
    if inner is None or wire_of(inner).cls is inner:
        return _Field(name, hint, None, None)
    wire = wire_of(inner)
    singles = _single_pointers(inner)

    def pack(values: Collection[Any], strong: list[int], weak: list[int]) -> Any:
        if singles is None:
            return [wire.pack(value, strong, weak) for value in values]
        packed = []
        for value in values:  # the same result as with `wire.pack`, without a call for each value
            fields = list(astuple(value))
            for position, is_weak in singles:
                found = fields[position]
                if found:
                    ids = weak if is_weak else strong
                    ids.append(found)
                    fields[position] = len(ids)
            packed.append(fields)
        return packed

    def unpack(values: Collection[Any], strong: tuple[int, ...], weak: tuple[int, ...]) -> Any:
        return tuple([wire.unpack(value, strong, weak) for value in values]) if values else ()

    return _Field(name, tuple[wire.cls, ...], pack, unpack)  # type: ignore[name-defined]  # made at run time


def _single_pointers(cls: type[msgspec.Struct]) -> list[tuple[int, bool]] | None:
    """Return (position, whether it is weak) of each field of a class that is a pointer. Return None if other fields
    contain pointers, too."""
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [_field(f.name, hints[f.name]) for f in msgspec.structs.fields(cls)]
    pointing = [(at, field.is_weak) for at, field in enumerate(fields) if field.pack is not None]
    singles = [(at, is_weak) for at, is_weak in pointing if is_weak is not None]
    return singles if len(singles) == len(pointing) else None


def _pointers(name: str, *, weak: bool) -> _Field:
    def pack(ids: tuple[int, ...], strong_ids: list[int], weak_ids: list[int]) -> Sequence[int]:
        if not any(ids):
            return ids
        target = weak_ids if weak else strong_ids
        if 0 not in ids:
            first = len(target) + 1
            target.extend(ids)
            return list(range(first, first + len(ids)))
        positions = []
        for id in ids:
            if id:
                target.append(id)
            positions.append(len(target) if id else 0)
        return positions

    def unpack(
        positions: list[int], strong_ids: tuple[int, ...], weak_ids: tuple[int, ...]
    ) -> tuple[int, ...]:
        ids = weak_ids if weak else strong_ids
        return tuple([ids[position - 1] if position else 0 for position in positions])

    return _Field(name, list[int], pack, unpack)


def _nested(name: str, wire: Wire) -> _Field:
    def unpack(value: Any, strong: tuple[int, ...], weak: tuple[int, ...]) -> Any:
        return None if value is None else wire.unpack(value, strong, weak)

    return _Field(name, wire.cls | None, wire.pack, unpack)
