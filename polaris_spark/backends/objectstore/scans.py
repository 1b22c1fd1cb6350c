"""Scans of an object store: listings by realm and hash prefix, and parallel reads of the listed objects.

A split is a tuple of key prefixes. A realm with few objects has one prefix. For a larger realm, there is one prefix for
each first hexadecimal digit of the hash in the keys, or for each pair of digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from polaris_spark.backends.arrow import batches, object_batch, reference_batch
from polaris_spark.backends.base import Split, Table
from polaris_spark.backends.chunks import runs
from polaris_spark.backends.limits import distinct
from polaris_spark.backends.objectstore import keys, packs
from polaris_spark.backends.objectstore.requests import Requests

if TYPE_CHECKING:
    import pyarrow as pa

_FEW: Final = 200


def splits(requests: Requests, table: Table, realms: Sequence[str] | None, n: int) -> list[Split]:
    """Return about `n` splits that together contain the rows of `realms` (None: of all realms). A realm is divided into
    at most 256 splits."""
    segments = (
        requests.folders(table) if realms is None else [keys.segment(realm) for realm in distinct(realms)]
    )
    whole = [keys.realm_prefix(table, segment) for segment in segments]
    per_realm = -(-max(1, n) // max(1, len(whole)))
    prefixes = whole
    if per_realm > 1:
        divided = requests.each(lambda prefix: _divided(requests, prefix, per_realm), whole)
        prefixes = [prefix for part in divided for prefix in part]
    return [Split(table, tuple(group)) for group in runs(prefixes, n)]


def scan(requests: Requests, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split in record batches. Rows that are deleted after their keys were listed are skipped."""
    rows, make = _Rows[split.table]
    for chunk in _chunks(requests, split.detail):
        found = rows(
            [(key, got[0]) for key, got in zip(chunk, requests.each(requests.get, chunk), strict=True) if got]
        )
        if found:
            yield make(found)


def _divided(requests: Requests, prefix: str, n: int) -> list[str]:
    if len(next(requests.pages(prefix), ())) < _FEW:
        return [prefix]
    firsts = [f"{prefix}/{digit}" for digit in keys.DIGITS]
    return firsts if n <= len(firsts) else [f"{first}/{digit}" for first in firsts for digit in keys.DIGITS]


def _chunks(requests: Requests, prefixes: Sequence[Any]) -> Iterator[list[str]]:
    """List the keys below the prefixes, and yield them in chunks. The objects of one chunk become one record batch."""
    listed = (each for prefix in prefixes for page in requests.pages(prefix) for each in page)
    for chunk in batches(listed, lambda each: each[1]):
        yield [key for key, _ in chunk]


def _object_rows(bodies: Sequence[tuple[str, bytes]]) -> list[tuple[str, int, int, bytes]]:
    found = []
    for key, body in bodies:
        if keys.is_pack(key):
            pack = packs.decode(body, key)
            found += [(pack.realm, *row) for row in pack.rows]
            continue
        realm, id, part = keys.listed(key)
        if realm is None:
            realm, body = keys.split_body(body)
        found.append((realm, id, part, body))
    return found


def _reference_rows(bodies: Sequence[tuple[str, bytes]]) -> list[tuple[str, str, bytes, bytes]]:
    stored = [keys.decode_reference(body, key) for key, body in bodies]
    return [(each.realm, each.name, *each.row) for each in stored if each.row is not None]


_Rows: dict[Table, tuple[Any, Any]] = {
    "objects": (_object_rows, object_batch),
    "references": (_reference_rows, reference_batch),
}
