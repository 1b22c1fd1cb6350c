"""Each state of a connection has a deadline and a limit, so every connection ends, whatever its client does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from polaris_spark.server import ConnectionBounds, Endpoint, listener, requests
from polaris_spark.server.connections import (
    FLUSH_SECONDS,
    HEAD_BYTES,
    HEAD_SECONDS,
    LINGER_SECONDS,
    MAX_HEADERS,
    MAX_PIPELINED,
    flush_seconds,
)
from polaris_spark.server.listener import source_of
from tests.server.exchanges import HEAD, Served, answering, eventually, with_app, with_catalog
from tests.server.test_hostile import statuses

GET = f"GET /v1/config HTTP/1.1\r\n{HEAD}\r\n"
POST = f"POST /v1/namespaces HTTP/1.1\r\n{HEAD}"
REFUSED = {
    "without a token": "POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
    "to no route": f"POST /v1/none HTTP/1.1\r\n{HEAD}Content-Length: 9\r\n\r\n",
    "of a method that no route has": f"PUT /v1/config HTTP/1.1\r\n{HEAD}Content-Length: 9\r\n\r\n",
    "with a large body": f"{POST}Content-Length: 99999999999999999999999999\r\n\r\n",
    "with another type of body": f"{POST.replace('application/json', 'text/plain')}Content-Length: 9\r\n\r\n",
    "in chunks": f"POST /v1/none HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n",
    "that waits to go on": f"POST /v1/none HTTP/1.1\r\n{HEAD}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
    "of HTTP/1.0": "POST /v1/namespaces HTTP/1.0\r\nContent-Length: 9\r\n\r\n",
    "to what reads no body": f"POST /healthz HTTP/1.1\r\n{HEAD}Content-Length: 9\r\n\r\n",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_request_is_answered_before_its_body_and_its_connection_ends(
    tmp_path: Path, kind: str
) -> None:
    async def test(served: Served) -> None:
        talk = await served.talk()
        await talk.send(REFUSED[kind])
        answer = await talk.until(b"\r\n\r\n")
        assert statuses(answer)[0] in (400, 401, 404, 405, 406, 413, 415)
        assert b"connection: close" in answer.lower()
        await talk.send("x")  # the first byte of a body that is never completed
        served.later(LINGER_SECONDS)
        await talk.rest()
        await served.connections(0)

    with_catalog(tmp_path, test)


def test_a_client_that_goes_on_sending_a_refused_body_reads_the_answer(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        talk = await served.talk()
        length = 4 * 2**20
        await talk.send(
            f"POST /v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        )
        await talk.send(b"x" * length)
        assert statuses(await talk.rest()) == [401]
        await served.connections(0)

    with_catalog(tmp_path, test)


@pytest.mark.parametrize(
    "sent", ["", "G", "GET /v1/config HTTP/1.1\r\nHost: x\r\n", "\r\n", "\r\n\r\n\r\n"], ids=repr
)
@pytest.mark.parametrize("first", ["", GET], ids=["a new connection", "after a request"])
def test_a_request_head_that_does_not_arrive_is_refused(tmp_path: Path, first: str, sent: str) -> None:
    async def test(served: Served) -> None:
        talk = await served.talk()
        if first:
            await talk.send(first)
            await talk.until(b"}")
        [connection] = served.server.connections if first else [None]
        await talk.send(sent)
        if connection is not None and sent:
            await eventually(lambda: connection.idle_since is None)
        else:
            await served.connections(1)
        served.later(HEAD_SECONDS)
        if connection is not None and not sent:
            assert connection.idle_since is not None  # an idle connection has a longer deadline
            return
        assert statuses(await talk.rest()) == [408]
        await served.connections(0)

    with_catalog(tmp_path, test)


def test_empty_lines_do_not_extend_the_deadline_of_a_request_head(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        talk = await served.talk()
        await talk.send(GET)
        await talk.until(b"}")
        [connection] = served.server.connections
        await talk.send("\r\n")
        await eventually(lambda: connection._received == 2)
        deadline = connection._deadline
        await talk.send("\r\n")
        await eventually(lambda: connection._received == 4)
        assert connection._deadline == deadline

    with_catalog(tmp_path, test)


@pytest.mark.parametrize("framing", ["Content-Length: 9", "Transfer-Encoding: chunked"])
def test_a_body_that_trickles_is_refused_after_a_while(
    tmp_path: Path, framing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.2)

    async def test(served: Served) -> None:
        talk = await served.talk()
        await talk.send(f"{POST}{framing}\r\n\r\n")

        async def trickle() -> None:
            while True:
                await talk.send("1\r\n \r\n" if "chunked" in framing else "")
                await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        assert statuses(await talk.rest()) == [408]
        trickling.cancel()
        await served.connections(0)

    with_catalog(tmp_path, test)


def test_a_client_that_does_not_read_its_answer_is_dropped() -> None:
    async def test(served: Served) -> None:
        talk = await served.talk(limit=1_000)
        await talk.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await eventually(lambda: [one for one in served.server.connections if one.flow.write_paused])
        served.later(
            FLUSH_SECONDS
        )  # the deadline is later, in proportion to the bytes that are still to be sent
        await served.connections(1)
        served.later(flush_seconds(64 * 2**20))
        await served.connections(0)

    with_app(answering(64 * 2**20), test)


def test_a_client_that_sends_requests_and_reads_no_answers_is_dropped() -> None:
    async def test(served: Served) -> None:
        talk = await served.talk(limit=1_000)
        sending = asyncio.create_task(talk.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100_000))
        await eventually(lambda: [one for one in served.server.connections if one.flow.write_paused])
        served.later(flush_seconds(16 * 2**20))
        await served.connections(0)
        sending.cancel()

    with_app(answering(16 * 2**20), test)


def test_a_closed_connection_whose_client_does_not_read_is_dropped() -> None:
    async def test(served: Served) -> None:
        talk = await served.talk(limit=1_000)
        await talk.send("GET / HTTP/1.0\r\n\r\n")
        await eventually(lambda: [one for one in served.server.connections if one.transport.is_closing()])
        served.later(0)
        served.later(flush_seconds(64 * 2**20) + 1)
        await served.connections(0)

    with_app(answering(64 * 2**20), test)


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"X: {'a' * 70_000}\r\n", 431),
        ("".join(f"X{i}: {'a' * 700}\r\n" for i in range(99)), 431),
        ("X: a\r\n" * (MAX_HEADERS + 1), 431),
        (f"X: {'a' * (HEAD_BYTES - 1_000)}\r\n", 200),
    ],
    ids=["one long header", "long headers", "many headers", "just short enough"],
)
def test_a_head_has_a_bound_however_it_is_sent(tmp_path: Path, head: str, status: int, parts: int) -> None:
    async def test(served: Served) -> None:
        talk = await served.talk()
        text = f"GET /v1/config HTTP/1.1\r\n{HEAD}Connection: close\r\n{head}\r\n"
        size = len(text) // parts + 1
        for i in range(parts):
            await talk.send(text[i * size : (i + 1) * size])
        assert statuses(await talk.rest()) == [status]

    with_catalog(tmp_path, test)


def test_an_empty_line_after_a_large_body_is_not_taken_for_a_large_head(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        talk = await served.talk()
        body = '{"namespace": ["a"]}'.ljust(2 * HEAD_BYTES)
        await talk.send(f"{POST}Content-Length: {len(body)}\r\n\r\n{body}")
        await talk.until(b"}}")
        await talk.send("\r\n")
        await talk.send(GET.replace("Host", "Connection: close\r\nHost"))
        assert statuses(await talk.rest()) == [200]

    with_catalog(tmp_path, test)


class Waiting:
    """An application that answers a request when the test allows it."""

    def __init__(self) -> None:
        self.begun = 0
        self.allowed = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        await self.allowed.wait()
        await answering(1)(scope, receive, send)


@pytest.mark.parametrize(
    "behind",
    ["G", "GET / HTTP/1.1\r\nX: y\r\n", "junk\r\n\r\n", "X: " + "a" * 100_000],
    ids=lambda text: text[:9],
)
def test_bytes_after_a_request_under_way_do_not_replace_its_answer(behind: str) -> None:
    app = Waiting()

    async def test(served: Served) -> None:
        talk = await served.talk()
        await talk.send(f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}{behind}")
        await eventually(lambda: app.begun)
        served.later(HEAD_SECONDS)
        app.allowed.set()
        answer = await talk.until(b"\r\n\r\n")
        served.later(HEAD_SECONDS)
        assert statuses(answer + await talk.rest()) == [200]
        await served.connections(0)

    with_app(app, test)


def test_requests_that_wait_for_an_earlier_answer_are_bounded() -> None:
    app = Waiting()

    async def test(served: Served) -> None:
        talk = await served.talk()
        await talk.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2_000)
        await eventually(lambda: app.begun)
        [connection] = served.server.connections
        await eventually(lambda: connection.pipeline)
        assert len(connection.pipeline) <= MAX_PIPELINED
        app.allowed.set()
        answers = await talk.rest()
        assert statuses(answers) == [200] * (MAX_PIPELINED + 1) + [400]
        assert answers.lower().count(b"connection: close") == 1
        assert f"more than {MAX_PIPELINED} requests are waiting".encode() in answers
        await served.connections(0)

    with_app(app, test)


def test_connections_of_an_address_are_bounded_and_closed_ones_do_not_count() -> None:
    async def test(served: Served) -> None:
        first, second = await served.talk(), await served.talk()
        await served.connections(2)
        third = await served.talk()
        assert await third.rest() == b""
        first.writer.close()
        await served.connections(1)
        fourth = await served.talk()
        await fourth.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert statuses(await fourth.rest()) == [200]
        assert second.writer.get_extra_info("peername")

    with_app(answering(1), test, Endpoint(connections=ConnectionBounds(100, 2)))


def test_at_the_total_bound_new_connections_wait() -> None:
    async def test(served: Served) -> None:
        heads = [await served.talk() for _ in range(2)]
        await served.connections(2)
        waits = await served.talk()
        await waits.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(0)
        assert len(served.server.connections) == 2
        heads[0].writer.close()
        assert statuses(await waits.rest()) == [200]

    with_app(answering(1), test, Endpoint(connections=ConnectionBounds(2, 100)))


def test_at_the_total_bound_a_new_connection_replaces_the_longest_idle_one() -> None:
    async def test(served: Served) -> None:
        request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        kept = [await served.talk() for _ in range(3)]
        for talk in kept:
            await talk.send(request)
            await talk.until(b"x")
        await kept[0].send(request)
        await kept[0].until(b"x")  # the second is the longest idle one now
        new = await served.talk()
        await new.send(request)
        await new.until(b"x")
        assert await kept[1].rest() == b""
        for talk in (kept[0], kept[2], new):
            await talk.send(request)
            await talk.until(b"x")

    for per_address in (3, 100):  # behind a proxy all have one address
        with_app(answering(1), test, Endpoint(connections=ConnectionBounds(3, per_address)))


def test_at_the_total_bound_a_new_connection_replaces_a_slow_head_if_none_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "SLOW_HEAD_SECONDS", 0.05)

    async def test(served: Served) -> None:
        slow = [await served.talk() for _ in range(2)]
        for talk in slow:
            await talk.send("GET / HTTP/1.1\r\nHost: loc")
        await served.connections(2)
        new = await served.talk()
        await new.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await new.until(b"x")
        assert await slow[0].rest() == b""

    with_app(answering(1), test, Endpoint(connections=ConnectionBounds(2, 100)))


def test_connections_with_an_unfinished_tls_handshake_count(certificate: tuple[Path, Path]) -> None:
    async def test(served: Served) -> None:
        silent = [await served.talk() for _ in range(2)]
        await eventually(lambda: served.server._listener._all == 2)
        assert await (await served.talk()).rest() == b""
        for talk in silent:
            talk.writer.close()
        await eventually(lambda: served.server._listener._all == 0)

    tls = Endpoint(
        certificate=str(certificate[0]), key=str(certificate[1]), connections=ConnectionBounds(9, 2)
    )
    with_app(answering(1), test, tls)


def test_a_connection_without_a_tls_handshake_ends(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.2)

    async def test(served: Served) -> None:
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01\x00"):
            talk = await served.talk()
            await talk.send(sent)
            assert await talk.rest() == b""
        await eventually(lambda: served.server._listener._all == 0)

    with_app(answering(1), test, Endpoint(certificate=str(certificate[0]), key=str(certificate[1])))


def trusting(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """The TLS context of a client that trusts the certificate."""
    return ssl.create_default_context(cafile=str(certificate[0]))


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_request_over_tls_is_answered_and_its_connection_ends(
    tmp_path: Path, certificate: tuple[Path, Path], kind: str
) -> None:
    async def test(served: Served) -> None:
        talk = await served.talk(
            ssl=ssl.create_default_context(cafile=str(certificate[0])), server_hostname="localhost"
        )
        await talk.send(REFUSED[kind])
        assert statuses(await talk.until(b"\r\n\r\n"))[0] in (400, 401, 404, 405, 406, 413, 415)
        await talk.send("x")
        served.later(LINGER_SECONDS)
        await talk.rest()
        await served.connections(0)

    with_catalog(tmp_path, test, endpoint=Endpoint(certificate=str(certificate[0]), key=str(certificate[1])))


def test_an_idle_connection_over_tls_ends(certificate: tuple[Path, Path]) -> None:
    async def test(served: Served) -> None:
        talk = await served.talk(
            ssl=ssl.create_default_context(cafile=str(certificate[0])), server_hostname="localhost"
        )
        await served.connections(1)
        served.later(HEAD_SECONDS)
        assert statuses(await talk.until(b"}}")) == [408]
        served.later(LINGER_SECONDS)
        await served.connections(0)

    with_app(answering(1), test, Endpoint(certificate=str(certificate[0]), key=str(certificate[1])))


def test_addresses_of_one_network_are_counted_together() -> None:
    assert source_of("192.0.2.1") == source_of("::ffff:192.0.2.1") != source_of("192.0.2.2")
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff:1") != source_of("2001:db8:0:1::1")
    assert source_of("fe80::1%eth0") == source_of("fe80::2%eth0")


def test_a_half_closed_connection_ends() -> None:
    async def test(served: Served) -> None:
        for begun in ("", "GET / HTTP/1.1\r\nHo", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
            talk = await served.talk()
            await talk.send(begun)
            talk.writer.write_eof()
            await talk.rest()
            await served.connections(0)

    with_app(Reading(), test)


class Reading:
    """An application that reads the whole body before it answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            if not message.get("more_body"):
                return await answering(1)(scope, receive, send)


def test_accepting_resumes_after_the_process_ran_out_of_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "_PAUSE_SECONDS", 0.5)

    async def test(served: Served) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        client = socket.socket()
        client.setblocking(False)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))  # the next file would have this number
        try:
            with contextlib.suppress(BlockingIOError):
                client.connect(("127.0.0.1", served.port))
            await eventually(lambda: "can be accepted" in caplog.text)
            assert len(caplog.records) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await served.connections(1)
        client.close()

    with_app(answering(1), test)
