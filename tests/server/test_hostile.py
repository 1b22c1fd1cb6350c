"""Hostile or broken clients get an error response or a closed connection, never a 5xx. The server keeps running."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.testing.waiting import wait_until
from tests.rest.client import Client, path
from tests.server.conftest import TOKENS
from tests.server.servers import PATIENCE, Remote, Server, client, error_of, options

AUTHORIZED = {"Authorization": f"Bearer {TOKENS['ann']}", "Content-Type": "application/json"}
HEAD = f"Authorization: Bearer {TOKENS['ann']}\r\nContent-Type: application/json\r\n"


@pytest.fixture(autouse=True)
def _the_server_lives(server: Server) -> Iterator[None]:
    yield
    assert client(server, TOKENS["bob"]).send("GET", "v1/config").status == 200


def exchange(server: Server, sent: bytes, *, end: bool = False) -> bytes:
    """Send bytes, and return everything received until the server closes the connection. If `end`, close the sending
    side first."""
    host, port = server.uri.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        try:
            connection.sendall(sent)
            if end:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has refused already
        received = b""
        try:
            while part := connection.recv(65_536):
                received += part
        except ConnectionResetError:
            pass
        return received


def statuses(received: bytes) -> list[int]:
    """Return the statuses of all answers on one connection."""
    parts = received.split(b"HTTP/1.1 ")[1:]
    return [int(part[:3]) for part in parts]


def ask(
    server: Server, method: str, target: str, body: bytes | None = None, **headers: str
) -> tuple[int, str]:
    """Send a request that is refused, and return status and error type."""
    sent = {**AUTHORIZED, **{name.replace("_", "-"): value for name, value in headers.items()}}
    status, _, text = Remote(server.uri).raw(method, target, body, sent)
    return status, error_of(text)["type"] if status >= 400 else ""


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/v1",
        "/v1/",
        "/v1//",
        "/v1/../v1/config",
        "/v1/%2e%2e/config",
        "/..%2f..%2fetc/passwd",
        "/v1/namespaces/..%2f..%2fetc%2fpasswd",
        "/v1/%00/namespaces",
        "/v1/namespaces/%ff%fe",
        "/v1/namespaces/%",
        "/v1/namespaces/%zz",
        "/v1/namespaces/%0d%0aSet-Cookie:%20a=b",
        "/v1/namespaces/" + "a" * 5_000,
        "/v1/namespaces/" + "%1F".join(["a"] * 1_000),
        "/v1/namespaces/%F0%9F%A7%8A/tables/%E2%80%AE",
        "/v1/namespaces;jsessionid=1",
        "/v1/" + "/".join("x" * 300),
        "/healthz/x",
        "/metrics/../v1/config",
    ],
)
@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PATCH", "OPTIONS", "PROPFIND"])
def test_odd_paths_are_refused(server: Server, method: str, target: str) -> None:
    status, kind = ask(server, method, target, b"{}" if method == "POST" else None)
    assert 400 <= status < 500
    assert kind.endswith("Exception")


@pytest.mark.parametrize(
    "query",
    [
        "a=1&a=1",
        "pageToken=x&pageToken=y",
        "%ff=1",
        "x=%ff",
        "&".join(f"p{i}=1" for i in range(1_000)),
        "pageSize=1e9",
    ],
)
def test_odd_queries_are_refused(server: Server, query: str) -> None:
    assert ask(server, "GET", f"/v1/namespaces?{query}") == (400, "BadRequestException")


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff\xfe{}", {}, 400),
        (b"\xef\xbb\xbf{}", {}, 400),
        (b'{"namespace": ["\xed\xa0\x80"]}', {}, 400),
        (b'{"namespace": ["\\ud800"]}', {}, 400),
        (b"{}" * 2, {}, 400),
        (b"null", {}, 400),
        (b"[]", {}, 400),
        (b"1e999", {}, 400),
        (b"{" * 100_000, {}, 400),
        (b'{"namespace": ' + b"[" * 100_000, {}, 400),
        (b'{"namespace": ["a"]}', {"Content-Type": "text/plain"}, 415),
        (b"namespace=a", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
        (b'{"namespace": ["a"]}', {"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        (b'{"namespace": ["a"]}', {"Idempotency-Key": "x" * 10_000}, 400),
        (b'{"namespace": ["a"]}', {"Idempotency-Key": "a, b"}, 400),
    ],
)
def test_odd_bodies_are_refused(server: Server, body: bytes, headers: dict[str, str], status: int) -> None:
    assert Remote(server.uri).raw("POST", "/v1/namespaces", body, {**AUTHORIZED, **headers})[0] == status


def test_a_body_has_a_largest_size(tmp_path: Path) -> None:
    largest = 1_000
    more = options(tmp_path / "w", "--max-body", f"{largest} B")
    with Server(f"sqlite://{tmp_path / 's.db'}", *more) as server:
        fits = json.dumps({"namespace": ["fits"]}).ljust(largest).encode()
        remote = Remote(server.uri)
        sent = {"Content-Type": "application/json"}
        assert remote.raw("POST", "/v1/namespaces", fits, sent)[0] == 200
        status, answered, text = remote.raw("POST", "/v1/namespaces", fits + b" ", sent)
        assert (status, error_of(text)["type"], answered["connection"]) == (
            413,
            "RequestTooLargeException",
            "close",
        )
        chunked = b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        for chunk in (b"400\r\n" + b" " * 1_024 + b"\r\n", b"1\r\n \r\n" * 200_000, b"1;" + b"x" * 300_000):
            assert statuses(exchange(server, chunked + chunk)) in ([413], [])
        assert client(server).ok("GET", "v1/namespaces")["namespaces"] == [["fits"]]


@pytest.mark.parametrize(
    "sent",
    [
        b"junk\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1/config HTTP/9.9\r\n\r\n",
        b"GET /v1/c\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n{}",
        b"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/config HTTP/1.1\r\nHost: localhost\r\nX: a\nb\x00\r\n\r\n",
        b"GET /v1/config HTTP/1.1\r\n Host: localhost\r\n\r\n",
        b"GET /v1/config HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /" + b"a" * 300_000,
        b"GET /v1/config HTTP/1.1\r\nX: " + b"a" * 300_000,
        b"GET /v1/config HTTP/1.1\r\n" + b"X: a\r\n" * 100_000,
    ],
    ids=lambda sent: repr(sent[:60]),
)
def test_a_value_that_is_not_http_is_refused_and_the_connection_closed(server: Server, sent: bytes) -> None:
    received = exchange(server, sent)
    assert all(400 <= status < 500 for status in statuses(received)), received
    assert len(statuses(received)) <= 1
    if received:
        assert error_of(received.split(b"\r\n\r\n", 1)[1].decode())["code"] == statuses(received)[0]


def test_a_server_without_tokens_answers_to_names_of_loopback_only(tmp_path: Path) -> None:
    own = ["localhost", "LocalHost:8181", "127.0.0.1:1", "[::1]:8181", "[::1]", "127.9.9.9"]
    others = [
        "evil.com",
        "localhost:x@evil.com",
        "localhost@evil.com",
        "[::1",
        "[localhost]",
        "localhost:1:2",
        "",
    ]
    with Server(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w")) as server:

        def status(*hosts: str) -> int:
            lines = "".join(f"Host: {host}\r\n" for host in hosts)
            sent = f"GET /v1/config HTTP/1.1\r\n{lines}Connection: close\r\n\r\n"
            return statuses(exchange(server, sent.encode()))[0]

        assert {host: status(host) for host in own} == dict.fromkeys(own, 200)
        assert {host for host in others if status(host) not in (400, 403)} == set()
        for several in [(), ("localhost", "evil.com"), ("localhost", "localhost")]:
            assert status(*several) in (400, 403)


def test_a_body_does_not_smuggle_a_request(server: Server, ann: Client, namespace: str) -> None:
    inner = f"DELETE /v1/namespaces/{namespace} HTTP/1.1\r\nHost: localhost\r\n{HEAD}\r\n"
    body = f"0\r\n\r\n{inner}"
    for framing in (
        f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n",
        f"Transfer-Encoding: xchunked\r\nContent-Length: {len(body)}\r\n",
        f"Content-Length: {len(body)}\r\n Transfer-Encoding: chunked\r\n",
        f"Transfer-Encoding : chunked\r\nContent-Length: {len(body)}\r\n",
    ):
        head = f"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\n{HEAD}Connection: close\r\n{framing}\r\n"
        assert all(
            400 <= status < 500 for status in statuses(exchange(server, (head + body).encode(), end=True))
        )
    assert [namespace] in ann.ok("GET", "v1/namespaces")["namespaces"]


def test_headers_behind_a_body_are_not_kept(server: Server) -> None:
    head = f"POST /v1/none HTTP/1.1\r\nHost: localhost\r\n{HEAD}Connection: close\r\n"
    body = "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    trailers = "Authorization: Bearer other\r\nX: y\r\n\r\n"
    assert statuses(exchange(server, (head + body + trailers).encode())) == [404]


def test_many_properties_are_removed_in_no_time(ann: Client) -> None:
    names = [str(i) for i in range(200_000)]  # a list searched for each of them would take minutes
    ann.namespace("many properties", properties=dict.fromkeys(names, ""))
    answer = ann.ok("POST", path("many properties") + "/properties", {"removals": names})
    assert len(answer["removed"]) == len(names)


def test_connections_are_not_upgraded(server: Server) -> None:
    upgrade = f"Host: localhost\r\n{HEAD}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    assert statuses(exchange(server, f"GET /v1/config HTTP/1.1\r\n{upgrade}\r\n".encode())) == [200]
    with_body = f"POST /v1/namespaces HTTP/1.1\r\n{upgrade}Content-Length: 2\r\n\r\n{{}}"
    answer = exchange(server, with_body.encode())
    assert statuses(answer) == [400]
    assert b"does not upgrade connections" in answer


def test_requests_in_a_row_are_answered_in_order(server: Server) -> None:
    one = f"GET /v1/config HTTP/1.1\r\nHost: localhost\r\n{HEAD}\r\n"
    two = f"GET /v1/none HTTP/1.1\r\nHost: localhost\r\n{HEAD}\r\n"
    last = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{HEAD}Connection: close\r\n\r\n"
    assert statuses(exchange(server, (one + two + one + last).encode())) == [200, 404, 200, 200]


def test_clients_that_send_slowly_do_not_keep_others_away(tmp_path: Path) -> None:
    head = "POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    begun = f"{head}Content-Length: 100\r\n\r\n{{".encode()
    with Server(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w", "--threads", "1")) as small:
        host, port = small.uri.removeprefix("http://").split(":")
        with contextlib.ExitStack() as slow:
            for _ in range(40):  # more than wait for one thread
                connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
                slow.enter_context(connection)
                connection.sendall(begun)
            for _ in range(5):
                assert client(small).send("GET", "v1/config").status == 200


def test_a_name_does_not_become_a_header(server: Server) -> None:
    received = exchange(
        server,
        f"GET /v1/namespaces/a%0d%0aX-Evil:%201 HTTP/1.1\r\n{HEAD}Host: a\r\nConnection: close\r\n\r\n".encode(),
    )
    assert statuses(received) == [404]
    assert b"x-evil" not in received.split(b"\r\n\r\n")[0].lower()


def test_clients_that_go_away_leave_nothing_behind(server: Server) -> None:
    host, port = server.uri.removeprefix("http://").split(":")
    for sent in (
        b"",
        b"POST",
        f"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\n{HEAD}Content-Length: 100\r\n\r\n{{".encode(),
    ):
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            connection.sendall(sent)
    metrics, none = Remote(server.uri), "polaris_spark_http_requests_in_flight 0.0"
    wait_until(lambda: none in metrics.raw("GET", "/metrics")[2], "requests of who went away end")


def test_answers_reveal_no_internals(server: Server) -> None:
    for target in ("/v1/namespaces/%ff", "/v1/none", "/v1/config?a=1&a=2"):
        text = Remote(server.uri).raw("GET", target, None, AUTHORIZED)[2]
        assert "Traceback" not in text
        assert "site-packages" not in text


def test_a_port_without_tls_refuses_tls_connections(server: Server) -> None:
    host, port = server.uri.removeprefix("http://").split(":")
    context = ssl.create_default_context()
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE) as connection,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(connection, server_hostname="localhost")
