"""Streams that a proxy resets below gRPC. The library then reports a status that no server has sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.errors import OutcomeUnknownError
from polaris_spark.testing.stores import row
from polaris_spark.testing.waiting import PATIENCE_S

_DATA, _RESET, _SETTINGS = 0, 3, 4
_LAST = _ACKNOWLEDGED = 1  # flags: of a request's end, of settings


def _frame(kind: int, flags: int, stream: bytes, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream + payload


def _reset_all(server: socket.socket, code: int) -> None:
    """Reset each stream of the first connection once its request is complete."""
    connection, _ = server.accept()
    with connection, connection.makefile("rb") as received:
        received.read(24)  # the client's preface
        connection.sendall(_frame(_SETTINGS, 0, bytes(4)))
        while len(head := received.read(9)) == 9:
            received.read(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], head[5:]
            if kind == _SETTINGS and not flags & _ACKNOWLEDGED:
                connection.sendall(_frame(_SETTINGS, _ACKNOWLEDGED, bytes(4)))
            if kind == _DATA and flags & _LAST:
                connection.sendall(_frame(_RESET, 0, stream, code.to_bytes(4, "big")))


@pytest.fixture(params=[2, 7, 8, 11, 12], ids=["internal", "refused", "cancelled", "calm", "insecure"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Port of a server that resets all streams with an error code of HTTP/2."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_reset_all, args=(server, request.param), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_swap_whose_stream_was_reset_is_in_doubt(port: int) -> None:
    backend = open_backend(f"bigtable://project/instance/store?endpoint=http://127.0.0.1:{port}&channels=1")
    backend._calls.open(None)  # type: ignore[attr-defined]  # the server has no store to look at
    with pytest.raises(OutcomeUnknownError, match="RST_STREAM"):
        backend.swap_reference("realm", "name", b"version", row())
    backend.close()
