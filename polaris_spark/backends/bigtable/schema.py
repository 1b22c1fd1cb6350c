"""The two tables of a store: functions that create and check the tables, and delete a realm from them.

A special row of `references`, whose key belongs to no realm, marks the two tables as a store. Its value is the version
of the store's format. The row is written after both tables were created. So a process that finds the row needs neither
permission to administer tables nor Google's admin library, which takes a second to import.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc

from polaris_spark.backends.base import Table as TableKind
from polaris_spark.backends.bigtable import failures
from polaris_spark.backends.bigtable.calls import Ask, Calls
from polaris_spark.backends.bigtable.channels import open_channel, routed
from polaris_spark.backends.bigtable.messages import FAMILY, VALUE, BigtableTable, merged, set_cells
from polaris_spark.backends.bigtable.settings import Settings
from polaris_spark.errors import NewerFormatError, NoStoreError, StoreURIError, TryAgainError

KINDS: Final[tuple[TableKind, ...]] = ("objects", "references")

_FORMAT: Final = 1
_MARK: Final = b"\x00store"
_DROP_S: Final = 600
_LONGEST_PAUSE_S: Final = 1.0


def check(ask: Ask, settings: Settings) -> None:
    """Check that the tables hold a store, in a format that this release supports.

    Raises:
        NoStoreError: there is no store.
        NewerFormatError: a newer release made the store.
    """
    found: list[bytes] = []

    def settle(_: Any, answers: Sequence[Any]) -> None:
        found.extend(cells.get(VALUE, b"") for _, cells in merged(answers))

    ask("ReadRows", [_references(settings).read([_MARK])], settle, "reading the store's mark")
    if not found:
        raise NoStoreError(settings.where)
    if not re.fullmatch(rb"[0-9]{1,9}", found[0]) or int(found[0]) > _FORMAT:
        raise NewerFormatError(
            f"{settings.where} has tables of format {found[0]!r}; this release supports format {_FORMAT}: "
            "use the release that made the store, or a later one"
        )


def set_up(calls: Calls, settings: Settings) -> None:
    """Create missing tables. Idempotent, and safe when several processes call it at once.

    Raises:
        StoreURIError: an existing table with the name of one of the store's tables belongs to another program, or the
            instance does not exist.
        StateError: the credentials lack a permission, or the app profile does not allow conditional writes.
    """
    try:
        if not calls.open(check):
            check(calls.each, settings)
        return
    except NoStoreError:
        pass
    with _administration(settings) as administration:
        for kind in KINDS:
            administration.create(kind)
    if not calls.open(_refuse_others):
        _refuse_others(calls.each, settings)
    mark = set_cells({VALUE: b"%d" % _FORMAT})
    calls.condition(_references(settings).insert(_MARK, VALUE, mark), "marking the tables as a store")


def _refuse_others(ask: Ask, settings: Settings) -> None:
    """Check that the tables hold no rows of another program. Tables with rows must have the mark of a store, which
    another process may have written in the meantime.

    Raises:
        StoreURIError: the tables belong to another program.
    """
    found: list[bytes] = []

    def settle(_: Any, answers: Sequence[Any]) -> None:
        found.extend(key for key, _ in merged(answers))

    for kind in KINDS:
        table = BigtableTable(settings.table_name(kind), settings.app_profile)
        ask("ReadRows", [table.read_range(b"\x00", b"\xff" * 9, most=1)], settle, "reading the first row")
    if found:
        try:
            check(ask, settings)
        except NoStoreError:
            raise StoreURIError(
                f"{settings.where}: the tables hold rows of another program; choose another prefix"
            ) from None


def drop(settings: Settings, prefix: bytes) -> bool:
    """Delete all rows whose keys begin with `prefix` from both tables, and return True. Return False if the server does
    not support this kind of deletion, or the credentials lack the permission for it."""
    with _administration(settings) as administration:
        return all(administration.drop(kind, prefix) for kind in KINDS)


class _Administration:
    """Calls to Bigtable's table admin service."""

    def __init__(self, settings: Settings, transport: Any) -> None:
        from google.cloud.bigtable_admin_v2 import types

        self._settings, self._transport, self._types = settings, transport, types

    def create(self, kind: TableKind) -> None:
        """Create a table. If the table exists, check that it has the column family of a store; so a retry is safe."""
        types, settings = self._types, self._settings
        family = types.ColumnFamily(gc_rule=types.GcRule(max_num_versions=1))
        request = types.CreateTableRequest(
            parent=settings.instance_name,
            table_id=settings.table_id(kind),
            table=types.Table(column_families={FAMILY: family}),
        )
        place = f"parent={settings.instance_name}"
        try:
            self._call(self._transport.create_table, request, place, "creating tables")
        except _ExistsError:
            name = settings.table_name(kind)
            view = types.Table.View.SCHEMA_VIEW
            read = types.GetTableRequest(name=name, view=view)
            table = self._call(self._transport.get_table, read, f"name={name}", "reading the table's schema")
            self._refuse_foreign(kind, table)

    def drop(self, kind: TableKind, prefix: bytes) -> bool:
        """Delete the rows of a table whose keys begin with a prefix, and return True. Return False if the server
        refuses this or does not support it."""
        name = self._settings.table_name(kind)
        request = self._types.DropRowRangeRequest(name=name, row_key_prefix=prefix)
        try:
            self._call(
                self._transport.drop_row_range, request, f"name={name}", "dropping a realm", seconds=_DROP_S
            )
        except _ForbiddenError:
            return False
        return True

    def _call(
        self, method: Any, request: Any, place: str, doing: str, *, seconds: float | None = None
    ) -> Any:
        """Call a method of the service, and retry until the call succeeds or `seconds` (None: the store's time-out)
        have passed. All calls of this class are idempotent."""
        end = time.monotonic() + (seconds or self._settings.timeout / 1_000)
        pause = 0.05
        while True:
            try:
                return method(request, timeout=max(end - time.monotonic(), 0.001), metadata=routed(place))
            except grpc.RpcError as error:
                status = failures.status_of(error)
                if status == "ALREADY_EXISTS":
                    raise _ExistsError(doing) from None
                if status in ("PERMISSION_DENIED", "UNIMPLEMENTED") and "drop" in doing:
                    raise _ForbiddenError(doing) from None
                if not failures.may_be_repeated(error) or time.monotonic() + pause > end:
                    raise failures.explained(error, self._settings.where, doing, writes=False) from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _refuse_foreign(self, kind: TableKind, table: Any) -> None:
        family = table.column_families.get(FAMILY)
        name = self._settings.table_id(kind)
        if family is None:
            raise StoreURIError(
                f"{self._settings.where}: the table {name!r} belongs to another program: it has no column family "
                f"{FAMILY!r}; choose another prefix"
            )
        if "max_age" in str(family.gc_rule):
            raise StoreURIError(
                f"{self._settings.where}: the table {name!r} deletes cells by age; set the garbage-collection "
                f"rule of its column family {FAMILY!r} to 'maxversions=1'"
            )


class _ExistsError(Exception):
    """A table cannot be created, because it exists already."""


class _ForbiddenError(TryAgainError):
    """The server refuses to delete rows by a key prefix, or does not support this."""


@contextmanager
def _administration(settings: Settings) -> Iterator[_Administration]:
    from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports.grpc import (
        BigtableTableAdminGrpcTransport,
    )

    channel = open_channel(settings, settings.admin_host, BigtableTableAdminGrpcTransport)
    try:
        yield _Administration(settings, BigtableTableAdminGrpcTransport(channel=channel))
    finally:
        channel.close()


def _references(settings: Settings) -> BigtableTable:
    return BigtableTable(settings.table_name("references"), settings.app_profile)
