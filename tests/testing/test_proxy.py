"""The proxy that injects network faults between a client and a server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from polaris_spark.testing.proxy import NONE, UNHEARD_ANSWERS, Faults, FaultyProxy, Kind
from polaris_spark.testing.server import ReservedPort
from polaris_spark.testing.waiting import PATIENCE_S

SENT = bytes(range(256)) * 400
QUIET_S = 1
"""How long nothing comes where nothing will, seconds."""


class Echo(StreamRequestHandler):
    """Returns everything that it receives, and ends when its client does."""

    def handle(self) -> None:
        try:
            while data := self.request.recv(4_096):
                self.request.sendall(data)
        except OSError:
            pass


class Server(ThreadingTCPServer):
    """A server of echoes."""

    daemon_threads = True
    block_on_close = False


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    with Server(("127.0.0.1", 0), Echo) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield listening.server_address[1]
        listening.shutdown()
        thread.join()


def echoed(port: int, *, patience_s: float = PATIENCE_S) -> tuple[bytes, str]:
    """Send `SENT` piece by piece. Return the received bytes, and how the connection ended."""
    got = b""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(patience_s)
        try:
            for start in range(0, len(SENT), 1_024):
                connection.sendall(SENT[start : start + 1_024])
                wanted = start + len(SENT[start : start + 1_024])
                while len(got) < wanted:
                    data = connection.recv(65_536)
                    if not data:
                        return got, "ended"
                    got += data
            connection.shutdown(socket.SHUT_WR)
            return got, "ended" if connection.recv(1) == b"" else "more"
        except ConnectionError:
            return got, "reset"
        except TimeoutError:
            return got, "silent"


def only(kind: Kind, **rest: float) -> Faults:
    """Return rates with only one kind of fault."""
    return NONE._replace(**{"every": 10_000.0, kind.replace("-", "_"): 1.0, **rest})


def test_without_faults_everything_passes_and_ends_pass_too(server: int) -> None:
    with FaultyProxy("127.0.0.1", server, faults=NONE) as proxy:
        assert echoed(proxy.port) == (SENT, "ended")
        assert not proxy.happened


@pytest.mark.parametrize(
    ("kind", "ends"),
    [("cut", {"reset"}), ("truncate", {"ended", "reset"}), ("half-close", {"ended", "silent"})],
)
def test_bytes_in_flight_are_lost(server: int, kind: Kind, ends: set[str]) -> None:
    with FaultyProxy("127.0.0.1", server, seed=1, faults=only(kind)) as proxy:
        got, end = echoed(proxy.port, patience_s=QUIET_S if "silent" in ends else PATIENCE_S)
        assert end in ends
        assert len(got) < len(SENT)
        assert SENT.startswith(got)
        assert proxy.happened[kind] >= 1


@pytest.mark.parametrize("kind", ["stall", "delay"])
def test_delayed_bytes_arrive_completely(server: int, kind: Kind) -> None:
    with FaultyProxy("127.0.0.1", server, seed=1, faults=only(kind, stall_s=0.02, delay_s=0.02)) as proxy:
        assert echoed(proxy.port) == (SENT, "ended")
        assert proxy.happened[kind] > 5


def test_a_stalled_connection_is_silent(server: int) -> None:
    with FaultyProxy("127.0.0.1", server, seed=1, faults=only("stall", stall_s=3_600)) as proxy:
        assert echoed(proxy.port, patience_s=QUIET_S)[1] == "silent"


def test_the_seed_decides_what_happens_and_where(server: int) -> None:
    found = []
    for seed in (1, 1, 2):
        with FaultyProxy(
            "127.0.0.1", server, seed=seed, faults=Faults(every=30_000, stall_s=0, delay_s=0)
        ) as proxy:
            found.append(([len(echoed(proxy.port)[0]) // 1_024 for _ in range(8)], proxy.happened))
    assert found[0][0] == found[1][0]
    assert found[0] != found[2]


def test_a_fault_can_affect_one_direction_only(server: int) -> None:
    faults = Faults(every=1, cut=1, truncate=0, half_close=0, stall=0, delay=0, directions=("answers",))
    with FaultyProxy("127.0.0.1", server, seed=1, faults=faults) as proxy:
        assert len(echoed(proxy.port)[0]) < 20
        assert proxy.happened == {"cut": 1}


def test_faults_begin_after_a_number_of_exchanges(server: int) -> None:
    faults = only("cut", every=0.01)._replace(directions=("answers",), after=5)
    with FaultyProxy("127.0.0.1", server, seed=1, faults=faults) as proxy:
        assert echoed(proxy.port) == (SENT[: 5 * 1_024], "reset")
        assert (proxy.exchanges, proxy.happened) == (6, {"cut": 1})


def test_a_server_that_is_not_heard_goes_on_to_its_end() -> None:
    ends: list[str] = []
    over = threading.Event()

    class Slow(StreamRequestHandler):
        def handle(self) -> None:
            try:
                for _ in range(20):
                    self.request.sendall(b"x")
                    time.sleep(0.005)
                ends.append("all sent")
            finally:
                over.set()

    with Server(("127.0.0.1", 0), Slow) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        with FaultyProxy("127.0.0.1", listening.server_address[1], seed=1, faults=UNHEARD_ANSWERS) as proxy:
            assert echoed(proxy.port)[0] == b""
            assert over.wait(PATIENCE_S)
        listening.shutdown()
        thread.join()
    assert ends == ["all sent"]


def test_all_connections_can_be_cut_at_once_and_new_ones_opened(server: int) -> None:
    with FaultyProxy("127.0.0.1", server, faults=NONE) as proxy:
        connections = [socket.create_connection(("127.0.0.1", proxy.port)) for _ in range(3)]
        for connection in connections:
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"
        proxy.cut_all()
        for connection in connections:
            with connection, pytest.raises(ConnectionError):
                connection.recv(1)
        assert echoed(proxy.port) == (SENT, "ended")


def test_a_server_that_is_not_there_gives_a_reset() -> None:
    with ReservedPort() as port, FaultyProxy("127.0.0.1", port.number) as proxy:
        assert echoed(proxy.port)[1] == "reset"
    proxy.close()
