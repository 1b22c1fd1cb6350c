"""`polaris-spark cat`: print one decoded object."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from polaris_spark.cli.options import Password, Store, with_store
from polaris_spark.cli.output import hexadecimal, print_json
from polaris_spark.clock import iso_text
from polaris_spark.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from polaris_spark.cli.stores import OpenRealm, OpenStore
    from polaris_spark.objects import Decoded

Json = dict[str, Any]


def cat(
    store: Store,
    object_id: Annotated[
        str | None,
        typer.Argument(
            metavar="OBJECT-ID", help="Id of the object, in hexadecimal or decimal.", show_default=False
        ),
    ] = None,
    realm: Annotated[
        str | None,
        typer.Option(help="Realm of the object; by default, all realms are searched.", show_default=False),
    ] = None,
    password: Password = None,
) -> None:
    """Print one object as JSON: its header, and its decoded content."""
    from polaris_spark.cli.stores import open_store

    store, object_id = with_store(store, object_id, "OBJECT-ID")
    wanted = possible_ids(object_id)
    with open_store(store, password) as opened:
        place, id = _find(opened, realm, wanted, object_id)
        print_json(described(place, id, place.objects.read([id])[id]))


def possible_ids(text: str) -> list[int]:
    """Return the ids that a text can represent. A text of digits can be a hexadecimal or a decimal id, so the result
    can have two ids.

    Raises:
        InputError: the text is not an id.
    """
    from polaris_spark.ids import MAX_ID

    digits = text.strip().lower()
    found: list[int] = []
    if re.fullmatch(r"(0x)?[0-9a-f]{1,16}", digits):
        found.append(int(digits, 16))
    if re.fullmatch(r"[0-9]{1,19}", digits):
        found.append(int(digits))
    found = [id for id in dict.fromkeys(found) if 0 < id <= MAX_ID]
    if not found:
        raise InputError(
            f"{text!r} is not an object id; write it in hexadecimal or decimal, as `log --json` shows it"
        )
    return found


def _find(store: OpenStore, realm: str | None, ids: list[int], text: str) -> tuple[OpenRealm, int]:
    from polaris_spark.backends.base import ObjectKey

    realms = store.realms() if realm is None else [store.realm(realm)]
    for place in realms:
        rows = store.backend.read_objects(place.record.instance, [ObjectKey(id) for id in ids])
        for id in ids:
            if ObjectKey(id) in rows:
                return place, id
    where = "any realm" if realm is None else f"realm {realm!r}"
    raise NotFoundError(f"there is no object {text} in {where} of this store")


def described(place: OpenRealm, id: int, found: Decoded) -> Json:
    """Return an object as a JSON value. Ids and pointers in it are in hexadecimal, which the command `cat` accepts."""
    from polaris_spark.ids import unpack

    header = found.header
    made = unpack(id)
    return {
        "id": hexadecimal(id),
        "decimal": str(id),
        "realm": place.record.name,
        "made": {"time": iso_text(made.ms), "node": made.node, "sequence": made.sequence},
        "type": header.type,
        "revision": header.revision,
        "strong": [hexadecimal(pointer) for pointer in header.strong],
        "weak": [hexadecimal(pointer) for pointer in header.weak],
        "content": _shown(found.value, frozenset((*header.strong, *header.weak))),
    }


def _shown(value: Any, pointers: frozenset[int]) -> Any:
    """Return a decoded value as a JSON value, with pointers in hexadecimal."""
    if isinstance(value, msgspec.Struct):
        hidden = getattr(value, "HIDDEN", ())  # such as hashed secrets
        fields = {name: "***" if name in hidden else getattr(value, name) for name in value.__struct_fields__}
        return {name.replace("_", "-"): _shown(item, pointers) for name, item in fields.items()}
    if isinstance(value, dict):
        return {str(key): _shown(item, pointers) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_shown(item, pointers) for item in value]
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, int) and value in pointers:
        return hexadecimal(value)
    return value


def _text(data: bytes) -> Any:
    """Return bytes as a JSON value: the JSON object or array that they encode, or else their text with unprintable
    characters escaped, or else, if they are not UTF-8, their hexadecimal digits."""
    if data[:1] in (b"{", b"["):
        try:
            return json.loads(data)
        except ValueError:
            pass
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
