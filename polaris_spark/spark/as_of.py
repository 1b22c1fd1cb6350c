"""`as-of`, `from` and `to`: points in the history of a reference, named by a commit or by a time."""

from __future__ import annotations

import re
from datetime import tzinfo
from typing import NamedTuple

import msgspec

from polaris_spark.clock import iso_time_ms
from polaris_spark.commits.log import ancestor, commit_at
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import CorruptionError, HistoryTrimmedError, InputError
from polaris_spark.ids import MAX_ID, id_time_ms
from polaris_spark.store.objects import ObjectStore

_LAST_MS = 253_402_300_799_999
"""The end of the year 9999. Larger numbers are ids of commits: all ids since March 2, 2025 are."""

_DECIMAL = re.compile(r"[0-9]{1,40}")


class AsOf(NamedTuple):
    """A commit, by the ids that its text may mean, or a time in milliseconds since 1970."""

    text: str
    commits: tuple[int, ...] = ()
    time: int | None = None
    option: str = "as-of"
    """The option that names it, for messages."""

    @classmethod
    def parse(cls, text: str, option: str = "as-of") -> AsOf:
        """A point from its text: a commit id in hexadecimal or decimal, milliseconds since 1970, or a time in ISO
        8601 with its zone: the processes that plan a query do not know the session's.

        Args:
            text: as written.
            option: that it was given as.
        Raises:
            InputError: it is none of these.
        """
        plain = text.strip().lower()
        ids = [int(plain)] if re.fullmatch(_DECIMAL, plain) else []
        if ids and ids[0] <= _LAST_MS:
            return cls(text, time=ids[0], option=option)
        if re.fullmatch(r"(0x)?[0-9a-f]{1,16}", plain):
            ids.append(int(plain.removeprefix("0x"), 16))
        ids = [id for id in ids if 0 < id <= MAX_ID]
        if ids:
            return cls(text, commits=tuple(ids), option=option)
        return cls(text, time=_milliseconds(text, option), option=option)


def pinned(store: ObjectStore, head: Head, as_of: AsOf | None) -> Head:
    """The head as it was at a point of its own history.

    Raises:
        HistoryTrimmedError: the point lies below the history floor, or before the first commit.
        InputError: no commit of this history is meant.
    """
    if as_of is None:
        return head
    if as_of.time is not None:
        id = commit_at(store, head, as_of.time)
        return _at(head, id, store.get(id, Commit))
    for id in as_of.commits:
        commit = find_commit(store, id)
        if commit is not None and head.floor_number <= commit.number <= head.number:
            if ancestor(store, head, commit.number) == id:
                return _at(head, id, commit)
        elif commit is not None and commit.number < head.floor_number and commit.time < head.floor_time:
            raise _trimmed(as_of, head)
    if all(id_time_ms(id) < head.floor_time for id in as_of.commits):
        raise _trimmed(as_of, head)
    raise InputError(
        f"{as_of.option} {as_of.text!r} names no commit in this history, which ends with commit {head.commit} "
        f"(number {head.number})"
    )


def moment(store: ObjectStore, as_of: AsOf) -> int:
    """The time of a point, milliseconds since 1970.

    Raises:
        InputError: it names no commit.
    """
    if as_of.time is not None:
        return as_of.time
    for id in as_of.commits:
        commit = find_commit(store, id)
        if commit is not None:
            return commit.time
    raise InputError(f"{as_of.option} {as_of.text!r} names no commit")


def find_commit(store: ObjectStore, id: int) -> Commit | None:
    """The commit of that id; None if there is none."""
    if not 0 < id <= MAX_ID:
        return None
    try:
        value = store.read((id,))[id].value
    except CorruptionError:
        return None
    return value if isinstance(value, Commit) else None


def _at(head: Head, id: int, commit: Commit) -> Head:
    return msgspec.structs.replace(head, commit=id, number=commit.number, time=commit.time)


def _trimmed(as_of: AsOf, head: Head) -> HistoryTrimmedError:
    return HistoryTrimmedError(
        f"{as_of.option} {as_of.text!r} lies below the history floor, commit number {head.floor_number}: "
        "that part of the history was trimmed"
    )


def _milliseconds(text: str, option: str) -> int:
    def no_zone() -> tzinfo:
        raise InputError(
            f"{option} is {text[:80]!r}, a time without a zone: write it with its own, such as 2026-01-31T12:00:00Z or "
            "2026-01-31T12:00:00+02:00"
        )

    try:
        return iso_time_ms(text, no_zone)
    except InputError:
        raise
    except ValueError:
        raise InputError(
            f"{option} is {text[:80]!r}; it is a commit id (decimal or hexadecimal), a time in ISO 8601 with its zone "
            "such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None
