"""The options `as-of`, `from` and `to`: points in the history of a reference, given as a commit or as a time."""

from __future__ import annotations

import re
from datetime import timezone, tzinfo
from typing import NamedTuple

import msgspec

from polaris_spark.clock import iso_time_ms
from polaris_spark.commits.log import ancestor, commit_at
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.errors import CorruptionError, HistoryTrimmedError, InputError
from polaris_spark.ids import MAX_ID, id_time_ms
from polaris_spark.store.objects import ObjectStore

_FIRST_MS = 100_000_000_000
"""Smallest number that is read as a time: March 3, 1973, in milliseconds since 1970. Smaller numbers are commit
numbers.
"""

_LAST_MS = 253_402_300_799_999
"""Largest number that is read as a time: the end of the year 9999, in milliseconds since 1970. Larger numbers are
commit ids.

All commit ids that were generated since March 2, 2025 are larger than this number.
"""

_DECIMAL = re.compile(r"[0-9]{1,40}")


class AsOf(NamedTuple):
    """A point in history: a commit number, a commit id, or a time."""

    text: str
    """The text that the user wrote."""
    commits: tuple[int, ...] = ()
    """Commit ids that the text can stand for: up to two, because digits can be a decimal or a hexadecimal id. Empty if
    the text is a number or a time."""
    time: int | None = None
    """The point as a time in milliseconds since 1970; None if the text is not a time."""
    option: str = "as-of"
    """Name of the option that contains the point, for messages."""
    number: int | None = None
    """The point as the number of a commit in the history of a reference; None if the text is not a commit number."""
    name: str = ""
    """Name of a branch or tag, if the text is neither a commit nor a time."""

    @classmethod
    def parse(cls, text: str, option: str = "as-of", *, names: bool = False) -> AsOf:
        """Return the point in history that a text names.

        A decimal number below 10^11 is a commit number, as shown by `changes.number` and `polaris-spark log`. A larger
        number, up to the year 9999, is a time in milliseconds since 1970. A still larger number, or a hexadecimal
        number, is a commit id. Any other text must be a time in ISO 8601 with a time zone, because the processes that
        plan a query do not have the session's time zone.

        Args:
            text: the point, as the user wrote it.
            option: name of the option that contains the text.
            names: whether a text of any other form is accepted as the name of a branch or tag.
        Raises:
            InputError: the text has none of these forms.
        """
        plain = text.strip().lower()
        ids = [int(plain)] if re.fullmatch(_DECIMAL, plain) else []
        if ids and ids[0] < _FIRST_MS:
            return cls(text, number=ids[0], option=option)
        if ids and ids[0] <= _LAST_MS:
            return cls(text, time=ids[0], option=option)
        if re.fullmatch(r"(0x)?[0-9a-f]{1,16}", plain):
            ids.append(int(plain.removeprefix("0x"), 16))
        ids = [id for id in ids if 0 < id <= MAX_ID]
        if ids:
            return cls(text, commits=tuple(ids), option=option)
        try:
            return cls(text, time=_milliseconds(text, option), option=option)
        except InputError:
            if names:
                return cls(text, option=option, name=text)
            raise


def lacks_zone(text: str) -> bool:
    """Whether a text is a time in ISO 8601 whose zone is missing."""
    missing: list[bool] = []

    def no_zone() -> tzinfo:
        missing.append(True)
        return timezone.utc

    try:
        iso_time_ms(text, no_zone)
    except ValueError:
        return False
    return bool(missing)


def pinned(store: ObjectStore, head: Head, as_of: AsOf | None) -> Head:
    """Return the head of a reference as it was at a point of the reference's history; `head` if the point is None.

    Raises:
        HistoryTrimmedError: the point is older than the oldest commit that is still stored.
        BeforeHistoryError: the point is a time before the first commit.
        InputError: the point is a commit number or commit id that does not exist in this history.
    """
    if as_of is None:
        return head
    if as_of.name:
        return pinned(store, head, AsOf.parse(as_of.text, as_of.option))  # raises an error
    if as_of.number is not None:
        if as_of.number < head.floor_number:
            raise _trimmed(as_of, head)
        if as_of.number > head.number:
            raise _none_of(as_of, head)
        id = ancestor(store, head, as_of.number)
        return _at(head, id, store.get(id, Commit))
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
    raise _none_of(as_of, head)


def pinned_in_realm(store: ObjectStore, head: Head, as_of: AsOf | None) -> Head:
    """Return the head of a reference as it was at a point of the realm's history; `head` if the point is None.

    The point can be a commit of any reference of the realm. If it is a commit of another reference, return the head at
    the time of this commit.

    Raises:
        HistoryTrimmedError: the point is older than the oldest commit that is still stored.
        BeforeHistoryError: the point is before the first commit.
        InputError: the point is not a commit of this realm.
    """
    try:
        return pinned(store, head, as_of)
    except InputError:
        assert as_of is not None
        return pinned(store, head, as_of._replace(time=moment(store, as_of)))


def moment(store: ObjectStore, as_of: AsOf) -> int:
    """Return the time of a point in history, in milliseconds since 1970. For a commit id, return the commit's time.

    Raises:
        InputError: the point is neither a time nor the id of a commit of this realm.
    """
    if as_of.time is not None:
        return as_of.time
    for id in as_of.commits:
        commit = find_commit(store, id)
        if commit is not None:
            return commit.time
    raise InputError(
        f"{as_of.option} {as_of.text[:80]!r} is not a commit: the realm has no commit with this id or number; "
        "polaris-spark log shows the ids and numbers of commits"
    )


def find_commit(store: ObjectStore, id: int) -> Commit | None:
    """Return the commit with this id, or None if it does not exist."""
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
        f"{as_of.option} {as_of.text[:80]!r} is before commit number {head.floor_number}, the oldest one still "
        "stored: the history before it was trimmed; give a later commit or time"
    )


def _none_of(as_of: AsOf, head: Head) -> InputError:
    return InputError(
        f"{as_of.option} {as_of.text[:80]!r} is not a commit of this history, which ends with commit {head.commit} "
        f"(number {head.number})"
    )


def _milliseconds(text: str, option: str) -> int:
    def no_zone() -> tzinfo:
        raise InputError(
            f"{option} is {text[:80]!r}, a time without a zone: add its zone, such as 2026-01-31T12:00:00Z or "
            "2026-01-31T12:00:00+02:00"
        )

    try:
        return iso_time_ms(text, no_zone)
    except InputError:
        raise
    except ValueError:
        raise InputError(
            f"{option} is {text[:80]!r}; it must be a commit number, a commit id (decimal or hexadecimal), a time in "
            "ISO 8601 with its zone such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None
