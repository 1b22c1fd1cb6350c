"""Bare swaps on Bigtable, by gRPC and the messages of google-cloud-bigtable, without the client layers above them.

With `google.cloud.bigtable.data`, or with the generated client below it, a swap takes about twice as long.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import grpc
from google.cloud.bigtable_v2 import types

from benchmarks.bare import REALM
from polaris_spark.backends.base import ReferenceRow
from polaris_spark.store_uris import StoreURI

_CELL_MICROS = 1_000
_SERVICE = "/google.bigtable.v2.Bigtable/"


def open_bare(uri: str) -> BareBigtable:
    """Open the store of a URI whose only option is `endpoint`, the endpoint of an emulator."""
    return BareBigtable(StoreURI.parse(uri))


class BareBigtable:
    """A store with one gRPC connection, which all clients share."""

    def __init__(self, uri: StoreURI) -> None:
        instance, _, prefix = uri.path.partition("/")
        self._table = f"projects/{uri.authority}/instances/{instance}/tables/{prefix}-references"
        self._channel = grpc.insecure_channel(uri.options["endpoint"].removeprefix("http://"))
        self._swap = self._channel.unary_unary(
            f"{_SERVICE}CheckAndMutateRow",
            types.CheckAndMutateRowRequest.pb().SerializeToString,
            types.CheckAndMutateRowResponse.pb().FromString,
        )
        self._read = self._channel.unary_stream(
            f"{_SERVICE}ReadRows",
            types.ReadRowsRequest.pb().SerializeToString,
            types.ReadRowsResponse.pb().FromString,
        )

    def client(self) -> _Client:
        """Return a client on the shared connection."""
        return _Client(self._table, self._swap, self._read)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


class _Client:
    def __init__(self, table: str, swap: Any, read: Any) -> None:
        self._table, self._swap, self._read = table, swap, read
        self._metadata = (("x-goog-request-params", f"table_name={quote(table, safe='')}&app_profile_id="),)

    def swap(self, name: str, expected: bytes, new: ReferenceRow) -> bool:
        request = types.CheckAndMutateRowRequest.pb()(
            table_name=self._table,
            row_key=_key(name),
            predicate_filter={
                "chain": {
                    "filters": [
                        {
                            "column_range_filter": {
                                "family_name": "f",
                                "start_qualifier_closed": b"version",
                                "end_qualifier_closed": b"version",
                            }
                        },
                        {"cells_per_column_limit_filter": 1},
                        {
                            "value_range_filter": {
                                "start_value_closed": expected,
                                "end_value_closed": expected,
                            }
                        },
                    ]
                }
            },
            true_mutations=[_set(b"version", new.version), _set(b"value", new.value)],
        )
        return bool(self._swap(request, timeout=30, metadata=self._metadata).predicate_matched)

    def version(self, name: str) -> bytes:
        request = types.ReadRowsRequest.pb()(
            table_name=self._table,
            rows={"row_keys": [_key(name)]},
            filter={"cells_per_column_limit_filter": 1},
        )
        for answer in self._read(request, timeout=30, metadata=self._metadata):
            for chunk in answer.chunks:
                if chunk.qualifier.value == b"version":
                    return bytes(chunk.value)
        raise KeyError(name)


def _key(name: str) -> bytes:
    return REALM.encode() + b"\0" + name.encode()


def _set(column: bytes, value: bytes) -> dict[str, Any]:
    return {
        "set_cell": {
            "family_name": "f",
            "column_qualifier": column,
            "timestamp_micros": _CELL_MICROS,
            "value": value,
        }
    }
