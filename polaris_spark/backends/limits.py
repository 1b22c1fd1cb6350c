"""Checks that backends share. Before each request, every backend checks names and rows against the limits of the
storage interface. When it opens a store, it checks the version of the format of the store's tables."""

from __future__ import annotations

from collections.abc import Iterable

from polaris_spark.backends.base import MAX_NAME_BYTES, MAX_ROW_BYTES, ObjectRow, ReferenceRow
from polaris_spark.errors import InputError, NewerFormatError, ObjectTooLargeError


def check_name(name: str, kind: str = "reference") -> None:
    """Check that a store can hold a realm name or reference name. Every nonempty Unicode text within the size limit is
    valid.

    Args:
        kind: what has this name, for error messages: `realm` or `reference`.
    Raises:
        InputError: the name is empty, or not Unicode text (lone surrogates).
        ObjectTooLargeError: the name is longer than `MAX_NAME_BYTES`.
    """
    if name.isascii():
        size = len(name)
    else:
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            raise InputError(f"the {kind} name {name!r} is not Unicode text") from None
    if not size:
        raise InputError(f"a {kind} name is empty; a name has at least one character")
    if size > MAX_NAME_BYTES:
        raise ObjectTooLargeError(
            f"a {kind} name has {size} bytes, over the limit of {MAX_NAME_BYTES}: {name[:40]!r}…"
        )


def check_realm(realm: str) -> None:
    """Check that a store can hold a realm name, and raise the errors of `check_name` if it cannot."""
    check_name(realm, "realm")


def check_place(realm: str, name: str) -> None:
    """Check that a store can hold a realm name and a reference name, and raise the errors of `check_name` if it
    cannot."""
    check_realm(realm)
    check_name(name)


def distinct(realms: Iterable[str]) -> list[str]:
    """Check realm names, and return them sorted and without duplicates.

    Raises:
        InputError, ObjectTooLargeError: a realm name is not valid.
    """
    found = sorted(set(realms))
    for realm in found:
        check_realm(realm)
    return found


def check_rows(realm: str, rows: Iterable[ObjectRow]) -> None:
    """Check that a store can hold rows of the table `objects` in a realm.

    Raises:
        InputError: the realm name is empty or not Unicode text.
        ObjectTooLargeError: the realm name is longer than `MAX_NAME_BYTES`, or a value than `MAX_ROW_BYTES`.
    """
    check_realm(realm)
    for row in rows:
        if len(row.value) > MAX_ROW_BYTES:
            raise ObjectTooLargeError(
                f"the value of the row with id {row.id} and part {row.part} in realm {realm!r} has "
                f"{len(row.value)} bytes, over the limit of {MAX_ROW_BYTES}"
            )


def check_reference(realm: str, name: str, new: ReferenceRow) -> None:
    """Check that a store can hold a row of the table `references`.

    Raises:
        ObjectTooLargeError: the realm, the name or the value is over its limit.
        InputError: the realm or the name is empty or not Unicode text, or the version is empty.
    """
    check_place(realm, name)
    if not new.version:
        raise InputError(f"the version of reference {name!r} is empty")
    if len(new.value) > MAX_ROW_BYTES:
        raise ObjectTooLargeError(
            f"the value of reference {name!r} in realm {realm!r} has {len(new.value)} bytes, "
            f"over the limit of {MAX_ROW_BYTES}"
        )


def refuse_newer_format(where: str, found: int, newest: int) -> None:
    """Check that this release supports the format of a store's tables.

    Args:
        where: name of the store for error messages.
        newest: version of the newest format that this release supports.
    Raises:
        NewerFormatError: a newer release made the store.
    """
    if found > newest:
        raise NewerFormatError(
            f"{where} has tables of format {found}; this release supports format {newest}: "
            "use the release that made the store, or a later one"
        )
