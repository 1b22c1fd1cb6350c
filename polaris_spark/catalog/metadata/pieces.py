"""The pieces of a draft: the schemas, snapshots and other parts of the metadata that are stored as separate objects.

A piece is read when it is first needed. When the draft is frozen, its new pieces become new rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.metadata.rows import NewId, NewRows, Numbered, ObjectReader, Piece
from polaris_spark.catalog.metadata.texts import Json, check_int, decode, encode, invalid
from polaris_spark.clock import CheckTime, unlimited
from polaris_spark.index import Entry, Index, IndexRoot

_SIGN = 1 << 63
_KEY_BYTES = 8
_FORM_BYTES = 32

_encode_form = msgspec.json.Encoder(order="deterministic").encode

Form = Callable[[Json], object]
"""A function that returns the form of a piece: a value, representable as JSON, that is the same for pieces that count
as equal. The form of a schema, for example, does not contain the schema's id."""


def form_digest(form: object) -> bytes:
    """Return a hash of the form of a piece (the value that is the same for equal pieces; see `Form`).

    Raises:
        BadRequestError: a string is not valid Unicode.
    """
    try:
        return blake2b(_encode_form(form), digest_size=_FORM_BYTES).digest()
    except UnicodeEncodeError as error:
        raise invalid(f"Cannot write text that is not valid Unicode: {error}") from error


class NumberedPieces:
    """The schemas, specs, sort orders or view versions of a draft, by id and in the order of the metadata.

    Once all pieces have been read, the cost of adding, removing or finding a piece does not depend on their number.
    """

    __slots__ = (
        "_base",
        "_by_digest",
        "_changed",
        "_check_time",
        "_cls",
        "_digested",
        "_digests",
        "_form",
        "_highest",
        "_pointers",
        "_reader",
        "_texts",
        "_values",
    )

    def __init__(
        self,
        cls: type[Piece],
        base: tuple[Numbered, ...],
        reader: ObjectReader,
        form: Form,
        check_time: CheckTime = unlimited,
    ) -> None:
        """
        Args:
            cls: type of the pieces.
            base: ids and pointers of the stored pieces.
            reader: reads the stored pieces.
            form: returns the form of a piece, which is the same for pieces that count as equal.
            check_time: called before each piece in long loops; raises an error to abort work that takes too long.
        """
        self._cls = cls
        self._form = form
        self._check_time = check_time
        self._reader = reader
        self._base = base
        self._changed = False
        self._pointers = {numbered.id: numbered.piece for numbered in base}
        self._values: dict[int, Json] = {}
        self._texts: dict[int, bytes] = {}
        self._digested = False
        """Whether all pieces have digests. If True, each new piece gets its digest when it is added."""
        self._digests: dict[int, bytes] = {}
        self._by_digest: dict[bytes, dict[int, None]] = {}
        """For each digest in `_digests`, the ids of the pieces with this digest, in the order of the pieces."""
        self._highest: list[int] | None = None
        """A heap of the negated ids; None until `next_id` is called. It may contain ids of pieces that were removed."""

    def __contains__(self, id: int) -> bool:
        return id in self._pointers

    def __len__(self) -> int:
        return len(self._pointers)

    def ids(self) -> list[int]:
        """Return the ids of the pieces (schemas, specs, sort orders or view versions), in their order."""
        return list(self._pointers)

    def get(self, id: int) -> Json | None:
        """Return the piece (such as a schema) with this id, parsed; None if there is no piece with this id."""
        if id not in self._pointers:
            return None
        if id not in self._values:
            text = self._texts.get(id)
            if text is None:
                text = self._reader.get(self._pointers[id], self._cls).text
            self._values[id] = decode(text)
        return self._values[id]

    def all(self) -> list[tuple[int, Json]]:
        """Return (id, parsed piece) for every piece, such as a schema, in order."""
        unread = [
            self._pointers[id] for id in self._pointers if id not in self._values and id not in self._texts
        ]
        if len(unread) > 1:
            found = self._reader.get_many(unread, self._cls)
            for id, pointer in self._pointers.items():
                if pointer in found and id not in self._values:
                    self._values[id] = decode(found[pointer].text)
        return [(id, self.get(id) or {}) for id in self._pointers]

    def next_id(self, least: int = 0) -> int:
        """Return an id for a new piece: the highest id plus 1, but at least `least`."""
        if self._highest is None:
            self._highest = [-id for id in self._pointers]
            heapify(self._highest)
        while self._highest and -self._highest[0] not in self._pointers:
            heappop(self._highest)
        return max(least, 1 - self._highest[0]) if self._highest else least

    def digest(self, value: Json) -> bytes:
        """Return the digest of a piece: a hash that is the same for equal pieces. `like` and `add` take this digest."""
        return form_digest(self._form(value))

    def like(self, digest: bytes) -> int | None:
        """Return the id of the first piece with this digest; None if no piece has this digest."""
        self._digest_all()
        return next(iter(self._by_digest.get(digest, ())), None)

    def _digest_all(self) -> None:
        if not self._digested:
            for id, value in self.all():
                self._check_time()
                self._keep_digest(id, self.digest(value))
            self._digested = True

    def _keep_digest(self, id: int, digest: bytes) -> None:
        self._digests[id] = digest
        self._by_digest.setdefault(digest, {})[id] = None

    def add(self, id: int, value: Json, text: bytes | None = None, *, digest: bytes | None = None) -> None:
        """Add a piece, such as a schema.

        Args:
            text: JSON text of the piece; None to encode `value`.
            digest: the digest of the piece; None to compute it when it is needed.
        Raises:
            BadRequestError: the id is taken, or does not fit into 32 bits.
        """
        check_int(id, "id of a schema, spec, sort order or view version")
        if id in self._pointers:
            raise invalid(f"Multiple entries with same key: {id}")
        self._changed = True
        if self._digested:
            self._keep_digest(id, self.digest(value) if digest is None else digest)
        if self._highest is not None:
            heappush(self._highest, -id)
        self._pointers[id] = 0
        self._values[id] = value
        self._texts[id] = encode(value) if text is None else text

    def replace(self, new: Callable[[Json], Json]) -> None:
        """Replace each piece, such as a schema, by the result of a function. The pieces keep their ids and order."""
        for id, value in self.all():
            self._check_time()
            self._values[id] = after = new(value)
            self._texts[id] = encode(after)
        self._changed, self._digested = True, False
        self._digests, self._by_digest = {}, {}

    def remove(self, ids: Collection[int]) -> None:
        """Remove the pieces (such as schemas) with these ids; unknown ids are ignored."""
        self._changed = True
        for id in ids:
            for held in (self._pointers, self._values, self._texts):
                held.pop(id, None)
            digest = self._digests.pop(id, None)
            if digest is not None:
                del self._by_digest[digest][id]

    def keep(self, ids: Sequence[int]) -> None:
        """Keep only the pieces (such as schemas) with these ids, in this order."""
        kept = set(ids)
        self.remove([id for id in self._pointers if id not in kept])
        self._pointers = {id: self._pointers[id] for id in ids}

    def freeze(self, new_id: NewId, rows: NewRows) -> tuple[Numbered, ...]:
        """Return the ids and pointers of the pieces for the new row; add new pieces to `rows`."""
        if not self._changed:
            return self._base
        for id, text in self._texts.items():
            self._check_time()
            self._pointers[id] = pointer = new_id()
            rows.append((pointer, self._cls(text)))
        self._texts = {}
        return tuple([Numbered(id, pointer) for id, pointer in self._pointers.items()])


class Placed(NamedTuple):
    """The index entry of a piece: the pointer to the piece, and its sort key in the metadata's JSON array."""

    pointer: int
    order: int


class IndexedPieces:
    """Snapshots or statistics of a draft, by snapshot id. Imported tables may have several statistics for one id."""

    __slots__ = ("_added", "_cls", "_index", "_reader", "_removed")

    def __init__(self, cls: type[Piece], root: IndexRoot, reader: ObjectReader) -> None:
        self._cls = cls
        self._reader = reader
        self._index = Index(root, reader.read_shards)
        self._added: dict[int, list[tuple[int, bytes]]] = {}
        self._removed: set[int] = set()

    def __contains__(self, snapshot_id: int) -> bool:
        return snapshot_id in self._added or self.place(snapshot_id) is not None

    def place(self, snapshot_id: int) -> Placed | None:
        """Return the index entry of the first snapshot or statistics with this snapshot id; None if the index has none,
        or if this draft removed it.

        Pieces that this draft added are not found, because they get index entries only in `freeze`.
        """
        if snapshot_id in self._removed:
            return None
        entry = self._index.get(key_of(snapshot_id))
        return None if entry is None else Placed(entry.pointer, int.from_bytes(entry.value, "big"))

    def get(self, snapshot_id: int) -> Json | None:
        """Return the first snapshot or statistics with this snapshot id, parsed; None if there is none."""
        if snapshot_id in self._added:
            return decode(self._added[snapshot_id][0][1])
        place = self.place(snapshot_id)
        return None if place is None else decode(self._reader.get(place.pointer, self._cls).text)

    def add(self, snapshot_id: int, text: bytes, order: int) -> None:
        """Add a piece (snapshot or statistics), even if its snapshot id already has a piece.

        Args:
            order: sort key of the piece in the metadata's JSON array.
        """
        self._added.setdefault(snapshot_id, []).append((order, text))

    def remove(self, snapshot_id: int) -> None:
        """Remove all pieces (snapshots or statistics) with this snapshot id."""
        self._added.pop(snapshot_id, None)
        self._removed.add(snapshot_id)

    def values(self) -> Iterator[Json]:
        """Return all snapshots or statistics, parsed, in the order of the metadata's JSON array. Reads all of them."""
        written = [
            (order, id, self._reader.get(pointer, self._cls).text)
            for id, pointer, order in placed(self._index)
            if id not in self._removed
        ]
        added = [(order, id, text) for id, texts in self._added.items() for order, text in texts]
        return (decode(text) for _, _, text in sorted(written + added))

    def freeze(self, new_id: NewId, rows: NewRows, quota: int) -> IndexRoot:
        """Return the new root of the index; add new pieces and shards to `rows`.

        Args:
            quota: maximum size of the changes that the root holds instead of the shards, in bytes.
        """
        for snapshot_id in self._removed:
            start = key_of(snapshot_id)
            for key, _ in list(self._index.range(start, _after(start))):
                self._index.remove(key)
        for snapshot_id, texts in self._added.items():
            for position, (order, text) in enumerate(texts):
                pointer = new_id()
                rows.append((pointer, self._cls(text)))
                value = order.to_bytes(max(1, -(-order.bit_length() // 8)), "big")
                self._index.put(key_of(snapshot_id, position), Entry(pointer, value))
        self._added, self._removed = {}, set()
        root, shards = self._index.freeze(quota, new_id)
        rows.extend(shards)
        return root


def placed(index: Index) -> Iterator[tuple[int, int, int]]:
    """Yield the entries of an index of pieces, ordered by snapshot id: the snapshot id, the pointer to the piece's row,
    and the number by which the pieces are sorted in the array of the metadata JSON."""
    for key, entry in index.range(b"", None):
        yield snapshot_id_of(key), entry.pointer, int.from_bytes(entry.value, "big")


def key_of(snapshot_id: int, position: int = 0) -> bytes:
    """Return the index key of a piece: eight bytes that sort like the snapshot ids.

    Args:
        position: position of the piece among the pieces with the same snapshot id. If it is not 0, the key has four
            more bytes with this position.
    """
    key = (snapshot_id + _SIGN).to_bytes(_KEY_BYTES, "big")
    return key + position.to_bytes(4, "big") if position else key


def snapshot_id_of(key: bytes) -> int:
    """Return the snapshot id that an index key contains."""
    return int.from_bytes(key[:_KEY_BYTES], "big") - _SIGN


def _after(key: bytes) -> bytes | None:
    following = int.from_bytes(key, "big") + 1
    return following.to_bytes(_KEY_BYTES, "big") if following < 1 << 64 else None
