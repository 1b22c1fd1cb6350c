"""Connections to Bigtable, with Google's credentials, or to an emulator.

gRPC's threads do not exist in a forked child, where calls would hang. So a process that was forked from a process with
open channels cannot open or use channels.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.auth import exceptions as auth_exceptions
from google.auth import load_credentials_from_file
from google.cloud.bigtable_v2 import types
from google.cloud.bigtable_v2.services.bigtable.transports.grpc import BigtableGrpcTransport

from polaris_spark.backends.bigtable.settings import Settings
from polaris_spark.errors import StateError, StoreURIError

_SERVICE: Final = "/google.bigtable.v2.Bigtable/"
_STREAMS: Final[Mapping[str, Any]] = {
    "ReadRows": (types.ReadRowsRequest, types.ReadRowsResponse),
    "MutateRows": (types.MutateRowsRequest, types.MutateRowsResponse),
    "SampleRowKeys": (types.SampleRowKeysRequest, types.SampleRowKeysResponse),
}
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise all channels to a server share one connection
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("SingleThreadedUnaryStream", 1),  # otherwise each stream starts a thread
    ("grpc.primary_user_agent", "polaris_spark"),
)

_used_by: int | None = None


class Channel:
    """A gRPC connection to Bigtable, for reading and writing rows."""

    def __init__(self, settings: Settings) -> None:
        """
        Raises:
            StoreURIError: there are no credentials, or they cannot be read.
            StateError: this process was forked from a process that has channels.
        """
        global _used_by
        refuse_in_child(settings)
        self._channel = open_channel(settings, settings.host, BigtableGrpcTransport)
        _used_by = os.getpid()
        self._profile = quote(settings.app_profile, safe="")
        self._metadata: dict[str, tuple[tuple[str, str], ...]] = {}
        self._condition = self._channel.unary_unary(
            f"{_SERVICE}CheckAndMutateRow",
            request_serializer=types.CheckAndMutateRowRequest.pb().SerializeToString,
            response_deserializer=types.CheckAndMutateRowResponse.pb().FromString,
        )
        self._streams = {
            method: self._channel.unary_stream(
                _SERVICE + method,
                request_serializer=asked.pb().SerializeToString,
                response_deserializer=answered.pb().FromString,
            )
            for method, (asked, answered) in _STREAMS.items()
        }

    def condition(self, request: Any, end: float) -> Any:
        """Send a CheckAndMutateRow request, and return its answer. `end` is the deadline, in seconds on the monotonic
        clock."""
        return self._condition(request, timeout=_until(end), metadata=self._routed(request.table_name))

    def stream(self, method: str, request: Any, end: float) -> Any:
        """Start a call, and return an iterator over its answers. The iterator raises an error if the call fails. The
        caller must cancel the call if it does not read all answers. `end` is the deadline, in seconds on the
        monotonic clock."""
        return self._streams[method](request, timeout=_until(end), metadata=self._routed(request.table_name))

    def close(self) -> None:
        """Close the connection, and cancel the calls in flight."""
        self._channel.close()

    def _routed(self, table_name: str) -> tuple[tuple[str, str], ...]:
        """Return the gRPC metadata by which Google routes a call to the servers of a table, without parsing the
        request."""
        if table_name not in self._metadata:
            self._metadata[table_name] = routed(
                f"table_name={quote(table_name, safe='')}&app_profile_id={self._profile}"
            )
        return self._metadata[table_name]


def open_channel(settings: Settings, host: str, transport: Any) -> Any:
    """Return a gRPC channel to a host. A channel to an emulator has no TLS and no credentials.

    Args:
        transport: the class of Google's library that creates a channel with TLS and credentials.
    Raises:
        StoreURIError: there are no credentials, or they cannot be read.
    """
    if settings.plain:
        return grpc.insecure_channel(host, options=_OPTIONS)
    try:
        credentials = None
        if settings.credentials is not None:
            with (
                warnings.catch_warnings()
            ):  # the warning is about files from untrusted sources; this path comes from the operator
                warnings.simplefilter("ignore", DeprecationWarning)
                credentials, _ = load_credentials_from_file(settings.credentials)  # type: ignore[no-untyped-call]  # untyped in the library
        return transport.create_channel(host, credentials=credentials, options=_OPTIONS)
    except (auth_exceptions.GoogleAuthError, OSError, ValueError) as error:
        source = settings.credentials or "application default credentials"
        raise StoreURIError(
            f"{settings.where}: {source} cannot be used: {' '.join(str(error).split())[:300]}; set the option "
            "'credentials' to the path of a credentials file, or run 'gcloud auth application-default login'"
        ) from None


def routed(parameters: str) -> tuple[tuple[str, str], ...]:
    """Return the gRPC metadata by which Google's servers route a call; `parameters` is a URL query string."""
    return (("x-goog-request-params", parameters),)


def refuse_in_child(settings: Settings) -> None:
    """Check that this process was not forked from a process with open channels.

    Raises:
        StateError: this process was forked from a process with channels.
    """
    if _used_by is not None and _used_by != os.getpid():
        raise StateError(
            f"{settings.where} cannot be used in this process, which was forked from one that used Bigtable: gRPC's "
            "threads do not exist here; start processes with 'spawn', or fork before the first use of Bigtable"
        )


def _until(end: float) -> float:
    return max(end - time.monotonic(), 0.001)
