"""Listing of the children of a namespace, in pages. All pages of a listing read the same commit."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from polaris_spark.catalog.entities.entities import NamespaceName
from polaris_spark.catalog.rows import NAMES, id_from
from polaris_spark.commits.log import ancestor
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import BadRequestError, HistoryTrimmedError, PolarisError
from polaris_spark.index.keys import children, decode_key

Keep = Callable[[CommitReader, Sequence[tuple[bytes, int]]], Sequence[bool]]
"""A function that takes a commit, and keys in its index `names` with their entity ids, and returns which of them to
list."""

_TOGETHER = 1_000
"""Number of entities that are given to a `Keep` together."""


class PageToken(msgspec.Struct, frozen=True, array_like=True):
    """Position at which a listing continues: after `key`, in the commit that the first page was read from."""

    reference: str
    number: int
    commit: int
    key: bytes

    def text(self) -> str:
        """Return the token as URL-safe text."""
        return base64.urlsafe_b64encode(_encode(self)).decode().rstrip("=")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PageToken).decode


class Page(NamedTuple):
    """One page of a listing: its sorted names, and the token of the next page. The token is None on the last page."""

    names: list[str]
    next: str | None


def list_names(
    head: CommitReader,
    reference: str,
    namespace: NamespaceName,
    kind: bytes,
    *,
    token: str | None,
    size: int | None,
    keep: Keep | None = None,
) -> Page:
    """Return the names of the namespaces, tables or views directly in `namespace`.

    Args:
        reference: name of the reference that `head` was read from.
        kind: `NAMESPACE`, `TABLE` or `VIEW`.
        token: token of the page to return; None for the first page.
        size: maximum number of names in the page; None for all names.
        keep: chooses the entities to list; None for all. Entities that are not chosen do not count towards `size`, and
            their names are never in a token.
    Raises:
        BadRequestError: the token is malformed, belongs to another listing, or has expired.
    """
    start, end = children(namespace, kind)
    reader, prefix = head, len(start)
    if token:
        after = _parse(token, reference)
        if not start <= after.key < end:
            raise BadRequestError("this page token belongs to another list; list again from the start")
        reader, start = _pinned(head, after), after.key + b"\x00"
    if keep is None:
        keys = reader.index(NAMES).keys(start, end, None if size is None else size + 1)
    else:
        keys = _kept(reader, start, end, None if size is None else size + 1, keep)
    if size is None or len(keys) <= size:
        return Page(_names(keys, prefix), None)
    del keys[size:]
    next_token = PageToken(reference, reader.commit.number, reader.head.commit, keys[-1])
    return Page(_names(keys, prefix), next_token.text())


def _kept(reader: CommitReader, start: bytes, end: bytes, most: int | None, keep: Keep) -> list[bytes]:
    """Return up to `most` keys of entities that `keep` chooses."""
    found: list[bytes] = []
    entries = reader.index(NAMES).range(start, end)
    while some := list(islice(entries, _TOGETHER)):
        chosen = keep(reader, [(key, id_from(entry.value)) for key, entry in some])
        found += [key for (key, _), is_kept in zip(some, chosen, strict=True) if is_kept]
        if most is not None and len(found) >= most:
            return found[:most]
    return found


def _names(keys: list[bytes], prefix: int) -> list[str]:
    """Return the names at the end of keys. The first `prefix` bytes of each key are the namespace and the kind; a 0x00
    in a key marks an escape."""
    return [decode_key(key)[2] if b"\0" in key else key[prefix:].decode() for key in keys]


def _parse(token: str, reference: str) -> PageToken:
    try:
        parsed = _decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (ValueError, msgspec.MsgspecError) as error:
        raise BadRequestError(f"{token[:80]!r} is not a page token; list again from the start") from error
    if parsed.reference != reference:
        raise BadRequestError(
            "this page token belongs to another catalog or branch; list again from the start"
        )
    return parsed


def _pinned(head: CommitReader, token: PageToken) -> CommitReader:
    """Open the commit in a token for reading. Raise `BadRequestError` if the commit is not in the history of
    the head."""
    try:
        if ancestor(head.store, head.head, token.number) != token.commit:
            raise BadRequestError(
                "this page token belongs to a commit that is not in the history of this branch; list again from "
                "the start"
            )
        return at_commit(head, token.commit)
    except HistoryTrimmedError as error:
        raise BadRequestError("this page token has expired; list again from the start") from error
    except (PolarisError, ValueError) as error:
        raise BadRequestError(
            f"this page token cannot be used: {error}; list again from the start"
        ) from error


def at_commit(head: CommitReader, commit_id: int) -> CommitReader:
    """Open an older commit of the reference that `head` was read from, for reading."""
    commit = head.store.get(commit_id, Commit)
    older = msgspec.structs.replace(head.head, commit=commit_id, number=commit.number, time=commit.time)
    return CommitReader(head.store, b"", older, commit)
