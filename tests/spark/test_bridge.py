"""The protocol of the child process, tested without a JVM."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.bridge import PROTOCOL, Bridge
from polaris_spark.spark.frames import BUFFER_BYTES, framed, receive
from polaris_spark.testing.waiting import PATIENCE_S
from tests.spark.processes import next_line

FAKE = """
import polaris_spark
class Catalog:
    def __init__(self, warehouse):
        self.warehouse = warehouse
    def request(self, method, path, query=None, body=None, headers=None):
        return 200, {"Asked": f"{method} {path} {query} {headers}"}, body or ""
    def close(self):
        import sys; print("closed", file=sys.stderr)
        if self.warehouse == "never closes":
            raise OSError("disk full")
def connect(**properties):
    print("a library prints")
    if properties["warehouse"] == "broken":
        raise RuntimeError("no such warehouse")
    return Catalog(properties["warehouse"])
polaris_spark.connect = connect
from polaris_spark.bridge import main
main()
"""


TOKEN = "0123456789abcdef"


@contextmanager
def connected(path: Path, token: str = TOKEN) -> Iterator[socket.socket]:
    """Open a connection as the shim does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        connection.sendall(framed(token, ""))
        yield connection


def is_hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # closed with something unread
        return True


def ask(connection: socket.socket, head: str, body: str = "") -> tuple[str, str] | None:
    connection.sendall(framed(head, body))
    return receive(connection, memoryview(bytearray(BUFFER_BYTES)))


class Child:
    """A bridge with a fake catalog. Tests send it requests as the shim does."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", FAKE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def tell(self, **message: Any) -> dict[str, str]:
        assert self.process.stdin is not None
        print(json.dumps(message), file=self.process.stdin, flush=True)
        answer: dict[str, str] = json.loads(next_line(self.process))
        return answer

    def greet(self) -> dict[str, str]:
        return self.tell(token=TOKEN, protocol=PROTOCOL)

    def open(self) -> Path:
        """Send the greeting, open a catalog "1", and return the socket's path."""
        path = Path(self.greet()["socket"])
        self.tell(connect={"store": "memory:", "warehouse": "/w"})
        return path

    def hang_up(self) -> str:
        """Close the channel, wait for the child, and return its log."""
        return self.process.communicate(timeout=PATIENCE_S)[1]


@pytest.fixture
def child() -> Iterator[Child]:
    started = Child()
    yield started
    started.process.kill()
    started.process.communicate()


def test_the_child_answers_with_its_socket_and_ends_when_its_input_closes(child: Child) -> None:
    assert Path(child.greet()["socket"]).is_socket()
    child.hang_up()
    assert child.process.returncode == 0


def test_the_socket_is_in_a_directory_that_only_its_user_enters_and_that_goes_with_the_child(
    child: Child,
) -> None:
    directory = Path(child.greet()["socket"]).parent
    assert directory.stat().st_mode & 0o777 == 0o700
    child.hang_up()
    assert not directory.exists()


def test_the_child_ends_though_there_are_connections(child: Child) -> None:
    with connected(child.open()) as connection:
        assert ask(connection, "1\nGET\nv1/config\n0\n") is not None
        child.hang_up()
    assert child.process.returncode == 0


@pytest.mark.parametrize("first", ["0123456789abcdeF", "0", TOKEN + "\0", "ü" * 8, "1\nGET\nv1/config\n0\n"])
def test_a_connection_that_begins_with_anything_but_the_token_is_closed_unanswered(
    child: Child, first: str
) -> None:
    with connected(child.open(), token=first) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert is_hung_up(connection)


@pytest.mark.parametrize("length", [0, 1, BUFFER_BYTES - 60, BUFFER_BYTES, 5_000_000])
def test_bodies_of_any_length_come_through(child: Child, length: int) -> None:
    with connected(child.open()) as connection:
        for body in ("x" * length, "ü𝄞\n" * (length // 7)):
            answer = ask(connection, "1\nPOST\nv1/a%1Fb\n1\nq\nü\nH\nv\n", body)
            assert answer == ("200\nAsked\nPOST v1/a%1Fb {'q': 'ü'} {'H': 'v'}\n", body)


def test_a_frame_may_arrive_in_pieces(child: Child) -> None:
    with connected(child.open()) as connection:
        frame = framed("1\nPOST\nv1/config\n0\n", "body")
        for byte in frame[:-1]:
            connection.sendall(bytes([byte]))
        connection.sendall(frame[-1:])
        answer = receive(connection, memoryview(bytearray(BUFFER_BYTES)))
        assert answer is not None
        assert answer[1] == "body"


def test_many_connections_are_answered_side_by_side(child: Child) -> None:
    path = child.open()

    def ask_repeatedly(number: int) -> None:
        with connected(path) as connection:
            for n in range(20):
                answer = ask(connection, "1\nPOST\nv1/config\n0\n", f"{number} {n}")
                assert answer is not None
                assert answer[1] == f"{number} {n}"

    with ThreadPoolExecutor(64) as threads:
        list(threads.map(ask_repeatedly, range(64)))


def test_a_jvm_that_dies_before_it_says_anything_leaves_no_child(child: Child) -> None:
    child.hang_up()
    assert child.process.returncode == 0


def test_catalogs_are_closed_when_the_jvm_is_gone(child: Child) -> None:
    child.greet()
    child.tell(connect={"store": "memory:", "warehouse": "/w"})
    assert "closed" in child.hang_up()


def test_errors_after_the_end_of_the_jvm_are_logged_in_one_line(child: Child) -> None:
    child.greet()
    child.tell(connect={"store": "memory:", "warehouse": "never closes"})
    logged = child.hang_up()
    assert "closing a catalog failed: OSError('disk full')\n" in logged
    assert "Traceback" not in logged


def test_the_interrupt_of_a_terminal_does_not_end_the_child(child: Child) -> None:
    child.greet()
    child.process.send_signal(signal.SIGINT)
    assert child.tell(connect={"store": "memory:", "warehouse": "/w"}) == {"connection": "1"}


def test_what_libraries_print_does_not_reach_the_control_channel(child: Child) -> None:
    child.greet()
    assert child.tell(connect={"store": "memory:", "warehouse": "/w"}) == {"connection": "1"}
    assert "a library prints" in child.hang_up()


def test_one_child_serves_several_catalogs(child: Child) -> None:
    child.greet()
    first = child.tell(connect={"store": "memory:", "warehouse": "/a"})
    second = child.tell(connect={"store": "memory:", "warehouse": "/b"})
    assert first["connection"] != second["connection"]


def test_a_catalog_that_cannot_be_opened_is_a_message_and_the_child_goes_on(child: Child) -> None:
    child.greet()
    answer = child.tell(connect={"store": "memory:", "warehouse": "broken"})
    assert answer == {"error": "The catalog could not be opened: RuntimeError: no such warehouse"}
    assert "connection" in child.tell(connect={"store": "memory:", "warehouse": "/w"})


def test_a_password_in_the_store_uri_is_refused_without_being_repeated(child: Child) -> None:
    child.greet()
    answer = child.tell(connect={"store": "postgresql://me:geheim@host/db", "warehouse": "/w"})
    assert "store.password" in answer["error"]
    assert "geheim" not in answer["error"] + child.hang_up()


def test_a_jar_that_speaks_another_protocol_is_refused(child: Child) -> None:
    refusal = child.tell(token=TOKEN, protocol="0")["fatal"]
    assert "bridge protocol 0" in refusal
    assert "pip install -e ." in refusal


class Recorded:
    """A connection that records its requests."""

    def __init__(self, *answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def request(
        self, method: str, path: str, query: Any = None, body: Any = None, headers: Any = None
    ) -> Any:
        self.asked.append((method, path, query, body, headers))
        if isinstance(self.answer[0], Exception):
            raise self.answer[0]
        return self.answer

    def close(self) -> None: ...


def test_a_request_reaches_the_catalog_as_it_was_and_its_answer_comes_back() -> None:
    catalog: Any = Recorded(200, {"ETag": "x\ny\\n", "Empty": ""}, '{"a":\n1}')
    bridge = Bridge()
    answer = bridge.request(
        f"{bridge.add(catalog)}\nPOST\nv1/a%1Fb\n2\nq\nü\nr\na\\nb\\\\n\nH\nv\n", "more\nlines"
    )
    assert catalog.asked == [("POST", "v1/a%1Fb", {"q": "ü", "r": "a\nb\\n"}, "more\nlines", {"H": "v"})]
    assert answer == ("200\nETag\nx\\ny\\\\n\nEmpty\n\n", '{"a":\n1}')


def test_an_unexpected_error_becomes_a_response_in_the_error_model() -> None:
    bridge = Bridge()
    catalog: Any = Recorded(KeyError("lost"))
    head, text = bridge.request(f"{bridge.add(catalog)}\nGET\nv1/config\n0\n", "")
    assert head == "500\n"
    assert json.loads(text)["error"] == {
        "message": "KeyError: 'lost'",
        "type": "InternalServerError",
        "code": 500,
    }
