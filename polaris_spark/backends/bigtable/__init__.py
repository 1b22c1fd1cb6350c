"""`bigtable://project/instance/prefix`: Google Bigtable, for any number of processes and machines.

A store is two tables of the instance, `<prefix>-objects` and `<prefix>-references` (default prefix: `polaris_spark`).
An instance can hold any number of stores.

Consistency: CheckAndMutateRow changes a row atomically, but each cluster checks the condition only against its own copy
of the row. So all processes must use the same cluster: the app profile (`?app-profile=`, default: the instance's
default profile) must route to a single cluster and allow single-row transactions. Bigtable refuses conditional writes
through any other profile. Reads through a profile with single-cluster routing are strongly consistent. Replication to
other clusters is asynchronous, for disaster recovery: the last acknowledged writes may be missing after a failover.

- **Swap**: the condition compares the latest cell of the column `version`. The cells of the new version and value are
  written with a constant timestamp. The request is sent once; if its answer is lost, the outcome is unknown.
- **Rows** are written by bulk mutations and read by sets of keys. Large requests are divided into chunks, a few of
  which are sent in parallel. Each entry of a bulk mutation has its own status; entries with a temporary failure are
  retried.
- **Keys** begin with the realm, so that a realm's rows are one range, which can be dropped and scanned. In `objects`, a
  hash of the id follows the realm, so that the newest rows are not all on one server.

Options: `app-profile`; `credentials`, the path of a credentials file (default: application default credentials);
`endpoint`, `http://host:port` of an emulator (default: BIGTABLE_EMULATOR_HOST) or `https://host` of another address of
the service; `timeout` of an operation including retries (30 s); `channels` (2), the number of connections of a process,
each with up to 32 concurrent operations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from polaris_spark.backends import Options
from polaris_spark.backends.base import (
    Backend,
    Conflict,
    ObjectKey,
    ObjectRow,
    ReferenceRow,
    Split,
    Swapped,
)
from polaris_spark.backends.base import Table as TableKind
from polaris_spark.backends.bigtable import bulk, keys, scans, schema
from polaris_spark.backends.bigtable.calls import Calls
from polaris_spark.backends.bigtable.messages import (
    DELETE_ROW,
    VALUE,
    VERSION,
    BigtableTable,
    Part,
    set_cells,
)
from polaris_spark.backends.bigtable.settings import Settings
from polaris_spark.backends.limits import check_reference, check_rows
from polaris_spark.store_uris import StoreURI

if TYPE_CHECKING:
    import pyarrow as pa


_OVERHEAD: Final = 100
"""Approximate size of a mutation without its value, in bytes."""


def open_backend(uri: StoreURI, options: Options) -> BigtableBackend:
    """Return the backend for the store in the instance of `uri`. It connects at first use. The module's docstring lists
    the options.

    Raises:
        StoreURIError: the URI names no instance, or an option or its value is not valid.
    """
    return BigtableBackend(Settings.parse(uri, options))


class BigtableBackend(Backend):
    """A store in two tables of a Bigtable instance."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._calls = Calls(settings, schema.check)
        self._tables = {
            kind: BigtableTable(settings.table_name(kind), settings.app_profile) for kind in schema.KINDS
        }
        self._objects, self._references = (self._tables[kind] for kind in schema.KINDS)

    def setup(self) -> None:
        schema.set_up(self._calls, self._settings)

    def close(self) -> None:
        self._calls.close()

    def read_objects(self, realm: str, keys_: Collection[ObjectKey]) -> dict[ObjectKey, bytes]:
        prefix = keys.realm_prefix(realm)
        wanted = {keys.object_key(prefix, key): key for key in keys_}
        found = bulk.read(self._calls, self._objects, sorted(wanted))
        return {wanted[key]: cells[VALUE] for key, cells in found.items() if VALUE in cells}

    def write_objects(self, realm: str, rows: Sequence[ObjectRow]) -> None:
        prefix = keys.realm_prefix(realm)
        check_rows(realm, rows)
        changes = (
            (
                keys.object_key(prefix, ObjectKey(row.id, row.part)),
                set_cells({VALUE: row.value}),
                len(row.value) + _OVERHEAD,
            )
            for row in rows
        )
        bulk.mutate(self._calls, self._objects, changes, "writing rows")

    def delete_objects(self, realm: str, keys_: Collection[ObjectKey]) -> None:
        prefix = keys.realm_prefix(realm)
        changes = ((keys.object_key(prefix, key), DELETE_ROW, _OVERHEAD) for key in keys_)
        bulk.mutate(self._calls, self._objects, changes, "deleting rows")

    def read_reference(self, realm: str, name: str) -> ReferenceRow | None:
        key = keys.reference_key(realm, name)
        cells = bulk.read(self._calls, self._references, [key]).get(key, {})
        return ReferenceRow(cells[VERSION], cells.get(VALUE, b"")) if VERSION in cells else None

    def insert_reference(self, realm: str, name: str, new: ReferenceRow) -> Swapped | Conflict:
        check_reference(realm, name, new)
        request = self._references.insert(keys.reference_key(realm, name), VERSION, _cells(new))
        taken = self._calls.condition(request, f"inserting reference {name!r}")
        return Conflict() if taken else Swapped()

    def swap_reference(
        self, realm: str, name: str, expected_version: bytes, new: ReferenceRow
    ) -> Swapped | Conflict:
        check_reference(realm, name, new)
        return self._change(realm, name, expected_version, _cells(new), "swapping")

    def delete_reference(self, realm: str, name: str, expected_version: bytes) -> Swapped | Conflict:
        return self._change(realm, name, expected_version, DELETE_ROW, "deleting")

    def splits(self, table: TableKind, realms: Sequence[str] | None, n: int) -> list[Split]:
        return scans.splits(self._calls, self._tables[table], table, realms, n)

    def scan(self, split: Split) -> Iterator[pa.RecordBatch]:
        return scans.scan(self._calls, self._tables[split.table], split)

    def drop_realm(self, realm: str) -> bool:
        """Delete a realm's rows by their key prefix, and return True. Return False if the server does not support this
        kind of deletion, or the credentials lack the permission for it."""
        prefix = keys.realm_prefix(realm)
        self._calls.open(schema.check)
        return schema.drop(self._settings, prefix)

    def _change(
        self, realm: str, name: str, expected: bytes, mutations: Sequence[Part], doing: str
    ) -> Swapped | Conflict:
        key = keys.reference_key(realm, name)
        if not expected:  # no row has an empty version, and a range that ends at an empty value is unbounded
            return Conflict()
        request = self._references.change_if(key, expected, mutations)
        done = self._calls.condition(request, f"{doing} reference {name!r}")
        return Swapped() if done else Conflict()


def _cells(row: ReferenceRow) -> list[Part]:
    return set_cells({VERSION: row.version, VALUE: row.value})
