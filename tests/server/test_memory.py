"""All requests together use a bounded amount of memory, and refused requests leave nothing in memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import http.client
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from polaris_spark.catalog.files.memory import Claim, MemoryBound, charge, parsed_bytes
from polaris_spark.errors import RequestTooLargeError, TryAgainError
from polaris_spark.server.connections import flush_seconds
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.rest.client import at_once, connect, table_request
from tests.server.exchanges import HEAD, TOKEN, Served, eventually, with_catalog
from tests.server.servers import PATIENCE, Server
from tests.server.test_hostile import statuses
from tests.sizes import TIMES

MIB = 2**20
BODY = 6 * MIB
MAX_BODY = 8 * MIB
MAX_MEMORY = 96 * MIB
SLACK = 64 * MIB
"""Memory of a server beyond its bound: small bodies and answers, connection buffers, and heap fragmentation."""
CLIENTS = 4

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


class Refused(NamedTuple):
    """A request that must be refused, with the expected statuses."""

    path: str
    body: bytes
    statuses: set[int]
    headers: dict[str, str] = AUTHORIZED


def with_text(size: int, **rest: object) -> bytes:
    """Return a JSON object that contains a text of this number of bytes."""
    return json.dumps({**rest, "properties": {"x": "a" * size}}).encode()


def updates(item: bytes) -> bytes:
    """Return a commit whose update contains an array with as many of these items as the maximum body size allows."""
    return b'{"requirements":[],"updates":[{"a":[' + item * (BODY // len(item)) + b"0]}]}"


BODIES = {
    "without a token": Refused("namespaces", b"x" * BODY, {401}, {"Content-Type": "application/json"}),
    "to no route": Refused("none", b"x" * BODY, {404}),
    "to no namespace": Refused("namespaces/none/tables", with_text(BODY, **table_request("t")), {404}),
    "no JSON": Refused("namespaces", b'{"namespace":["' + b"x" * BODY, {400}),
    "a bad value": Refused("namespaces", json.dumps({"namespace": ["a" * BODY, ""]}).encode(), {400}),
    "no UTF-8": Refused("namespaces", b'{"namespace":["' + b"\xff" * BODY, {400}),
    "what is there": Refused("namespaces", with_text(BODY, namespace=["a"]), {409}),
    "too large": Refused("namespaces", b"x" * (MAX_BODY + 1), {413}),
    "another type": Refused("namespaces", b"x" * BODY, {415}, {**AUTHORIZED, "Content-Type": "text/plain"}),
    "a long header": Refused("namespaces", b"", {431}, {**AUTHORIZED, "X": "a" * 100_000}),
    "many headers": Refused("namespaces", b"", {431}, {**AUTHORIZED, **{f"X{i}": "a" for i in range(500)}}),
    "many parameters": Refused("namespaces?" + "&".join(["a=1"] * 10_000), b"", {400}),
    "deep arrays": Refused("namespaces", b'{"namespace":' + b"[" * BODY, {400, 413}),
    "many arrays": Refused("namespaces/a/tables/t", updates(b"[],"), {404, 413}),
    "many objects": Refused("namespaces/a/tables/t", updates(b'{"":0},'), {404, 413}),
    "many numbers": Refused("namespaces/a/tables/t", updates(b"1.5,"), {404, 413, 503}),
    "a long number": Refused("namespaces/a/tables/t", updates(b"9"), {400}),
    "a large exponent": Refused("namespaces", b'{"namespace":[1e999999999]}', {400}),
    "wide characters": Refused("namespaces", '{"namespace":["🧊", ""]}'.encode().ljust(BODY), {400}),
}
FILES: dict[str, Callable[[], Iterator[bytes]]] = {
    "too long when decompressed": lambda: iter([b" " * MIB] * 520),
    "larger than the bound": lambda: iter([b" " * MIB] * 200),
    "many arrays": lambda: iter([b'{"a":[', *[b"[]," * (MIB // 3)] * 60, b"0]}"]),
    "no JSON": lambda: iter([b"[" * MIB] * 8),
}


def registrations(folder: Path) -> dict[str, Refused]:
    """Registrations of compressed files that take much memory."""
    folder.mkdir(exist_ok=True)
    found = {}
    for number, (kind, pieces) in enumerate(FILES.items()):
        path = folder / f"{number}.gz.metadata.json"
        with gzip.open(path, "wb", compresslevel=1) as file:
            for piece in pieces():
                file.write(piece)
        body = json.dumps({"name": "r", "metadata-location": f"file://{path}"}).encode()
        found[f"a file: {kind}"] = Refused("namespaces/a/register", body, {400, 413, 503})
    return found


class Measured:
    """A server whose memory is measured."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = server.uri.removeprefix("http://")

    def bytes(self, field: str = "VmRSS") -> int:
        """Memory of the process: the present value, or the highest value (`VmHWM`) since `forget`."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0]) * 1024

    def forget(self) -> None:
        """Reset the highest value."""
        Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")

    def send(self, refused: Refused) -> int:
        """Send a request, and return the status."""
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        with contextlib.closing(connection):
            with contextlib.suppress(ConnectionError):  # it was refused before its end
                connection.request("POST", f"/v1/{refused.path}", refused.body, refused.headers)
            return connection.getresponse().status

    def drive(self, refused: Refused, seconds: float) -> None:
        """Send a request many times from several clients, at least twice from each."""
        until = time.monotonic() + seconds

        def send() -> set[int]:
            answered = {self.send(refused)}
            while time.monotonic() < until or len(answered) == 0:
                answered.add(self.send(refused))
            return answered

        for answered in at_once([send] * CLIENTS):
            assert answered <= refused.statuses


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """A server with a small bound, with one namespace and files that take much memory."""
    folder = tmp_path_factory.mktemp("memory")
    bounds = ["--max-body", f"{MAX_BODY} B", "--max-memory", f"{MAX_MEMORY} B", "--token", "env:TOKEN"]
    store = f"sqlite://{folder / 'store.db'}"
    with Server(store, "--warehouse", str(folder / "w"), *bounds, env={"TOKEN": TOKEN}) as server:
        found = Measured(server)
        assert found.send(Refused("namespaces", b'{"namespace":["a"]}', {200})) == 200
        BODIES.update(registrations(folder / "w"))
        yield found


def assert_bounded(measured: Measured, kind: str, seconds: float) -> None:
    """Send one kind of request, and check that memory stays within the bound and goes down again."""
    before = measured.bytes()
    measured.forget()
    measured.drive(BODIES[kind], seconds)
    highest = measured.bytes("VmHWM")
    print(f"{kind}: {before / MIB:.0f}, at most {highest / MIB:.0f}, then {measured.bytes() / MIB:.0f} MiB")
    assert highest <= before + MAX_MEMORY + SLACK
    wait_until(lambda: measured.bytes() <= before + SLACK, "memory goes back to the system", every_s=0.05)


KINDS = [*BODIES, *(f"a file: {kind}" for kind in FILES)]


@pytest.mark.parametrize("kind", KINDS)
def test_refused_requests_take_bounded_memory_and_leave_none(measured: Measured, kind: str) -> None:
    assert_bounded(measured, kind, 0.0)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_of_refused_requests_takes_bounded_memory(measured: Measured, kind: str) -> None:
    first = measured.bytes()
    for _ in range(2):
        assert_bounded(measured, kind, 0.7 * TIMES)
    assert measured.bytes() <= first + SLACK


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "v1/namespaces", json.dumps({"namespace": ["db"], "properties": {"x": "a" * MIB}})),
        ("POST", "v1/namespaces", json.dumps({"namespace": ["a" * MIB, ""]})),
        ("POST", "v1/namespaces", '{"namespace": ["' + "a" * MIB),
        ("POST", "v1/namespaces/none/tables", with_text(MIB, **table_request("t")).decode()),
        ("POST", "v1/namespaces/db/register", "{file}"),
    ],
    ids=["exists", "bad value", "no JSON", "no namespace", "register"],
)
def test_a_refused_request_leaves_no_reference_cycles(
    tmp_path: Path, method: str, path: str, body: str
) -> None:
    file = tmp_path / "w" / "x.metadata.json"
    file.parent.mkdir()
    file.write_text('{"format-version": 9, "x": "' + "a" * MIB + '"}')
    if body == "{file}":
        body = json.dumps({"name": "t", "metadata-location": f"file://{file}"})
    direct = connect(f"sqlite://{tmp_path / 'store.db'}", tmp_path / "w")
    direct.namespace("db")
    assert direct.send(method, path, body).status in (400, 404, 409)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(10):
            assert direct.send(method, path, body).status in (400, 404, 409)
        assert tracemalloc.get_traced_memory()[0] < MIB
    finally:
        tracemalloc.stop()
        gc.enable()
        direct.session.close()


def test_large_requests_wait_for_each_other_and_small_ones_do_not(tmp_path: Path) -> None:
    body = '{"namespace": ["a"]}'.ljust(2 * MIB)
    head = f"POST /v1/namespaces HTTP/1.1\r\n{HEAD}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"

    async def test(served: Served) -> None:
        slow, waits, small = [await served.talk() for _ in range(3)]
        await slow.send(head)
        await eventually(lambda: served.memory.claimed)
        await waits.send(head)
        await waits.send(body[:1_000])
        await small.send(f"GET /v1/config HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n")
        assert statuses(await small.rest()) == [200]
        answer = await waits.until(b"}}")
        assert statuses(answer) == [503]
        assert b"retry-after: 1" in answer.lower()
        assert b"--max-memory" in answer
        await slow.send(body)
        await slow.rest()

    with_catalog(tmp_path, test, max_memory=3 * MIB, patience=0.2)


def test_a_body_whose_parts_would_not_fit_is_refused(tmp_path: Path) -> None:
    body = b'{"namespace": [' + b"[]," * (MIB // 3) + b"0]}"

    async def test(served: Served) -> None:
        for framing in (f"Content-Length: {len(body)}", "Transfer-Encoding: chunked"):
            talk = await served.talk()
            await talk.send(f"POST /v1/namespaces HTTP/1.1\r\n{HEAD}Connection: close\r\n{framing}\r\n\r\n")
            await talk.send(body if "Length" in framing else b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            answer = await talk.rest()
            assert statuses(answer) == [413]
            assert b"--max-memory" in answer

    with_catalog(tmp_path, test, max_memory=8 * MIB)


def test_claims_are_granted_in_order_as_others_end() -> None:
    bound = MemoryBound(10, patience=PATIENCE_S)
    order: list[str] = []

    def large() -> None:
        with Claim(bound) as claim:
            claim.grow(8)
            order.append("large")

    def small() -> None:
        with Claim(bound) as claim:
            claim.grow(1)
            order.append("small")

    with Claim(bound) as first:
        first.grow(5)
        threads = [threading.Thread(target=large), threading.Thread(target=small)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until(lambda number=number: len(bound._waiting) == number, "it waits")  # type: ignore[misc]  # bound
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(order) == ["large", "small"]
    assert bound.claimed == 0


def test_a_claim_that_waits_for_too_long_is_refused_and_holds_nothing() -> None:
    bound = MemoryBound(10, patience=0.01)
    with Claim(bound) as first:
        first.grow(6)
        with Claim(bound) as second, second.charged():
            with pytest.raises(TryAgainError, match="--max-memory"):
                charge(5)
            with pytest.raises(RequestTooLargeError, match="--max-memory"):
                charge(11)
            charge(4)
        assert bound.claimed == 6
    assert bound.claimed == 0
    charge(10**12)  # no request is handled in this thread


def test_claims_do_not_deadlock() -> None:
    bound = MemoryBound(10, patience=PATIENCE_S)
    with Claim(bound) as first, Claim(bound) as second:
        first.grow(5)
        second.grow(5)
        waiting = threading.Thread(target=first.grow, args=(5,))
        waiting.start()
        wait_until(lambda: bound._waiting, "it waits")
        with pytest.raises(TryAgainError):
            second.grow(1)
        with second:
            pass  # its request ends
        waiting.join(PATIENCE_S)
        assert bound.claimed == 10
    assert bound.claimed == 0


def test_a_client_that_leaves_while_waiting_for_memory_holds_nothing() -> None:
    bound = MemoryBound(10)

    async def wait() -> None:
        with Claim(bound) as claim:
            await claim.reserve(5)

    async def run() -> None:
        with Claim(bound) as first:
            first.grow(6)
            task = asyncio.create_task(wait())
            await eventually(lambda: bound._waiting)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not bound._waiting
        assert bound.claimed == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    "item", ["[],", "{},", '{"":0},', '{"a":1,"b":2},', "1.5,", '"é",', '"a",', "[[]],", "1,"]
)
def test_the_memory_of_parsed_json_is_not_underestimated(item: str) -> None:
    require_not_underestimated('{"a":[' + item * (MIB // len(item)) + "0]}")


@pytest.mark.parametrize("wide", ["🧊", r"\ud83e\uddca", r"\u20ac", "é"])
def test_the_memory_of_a_text_with_one_wide_character_is_not_underestimated(wide: str) -> None:
    require_not_underestimated('"' + "a" * MIB + wide + '"')


def require_not_underestimated(text: str) -> None:
    """Check that the estimate for a JSON text is no less than the memory that parsing takes, as text and as bytes."""
    for given in (text, text.encode()):
        tracemalloc.start()
        try:
            parsed = msgspec.json.decode(given)
            assert tracemalloc.get_traced_memory()[1] <= parsed_bytes(given)
        finally:
            tracemalloc.stop()
        assert parsed


def test_answers_count_until_clients_have_read_them(tmp_path: Path) -> None:
    size, bound = 12 * MIB, 40 * MIB
    load = f"GET /v1/namespaces/a/tables/t HTTP/1.1\r\n{HEAD}\r\n"
    config = f"GET /v1/config HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n"

    def post(path: str, body: bytes) -> bytes:
        head = f"POST /v1/{path} HTTP/1.1\r\n{HEAD}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    small = post("namespaces/a/tables/t", b'{"requirements":[],"updates":[]}')

    async def test(served: Served) -> None:
        async def answered(request: str | bytes) -> list[int]:
            talk = await served.talk()
            await talk.send(request)
            return statuses(await talk.rest())

        assert await answered(post("namespaces", b'{"namespace":["a"]}')) == [200]
        table = {**table_request("t"), "properties": {"x": "a" * size}}
        assert await answered(post("namespaces/a/tables", json.dumps(table).encode())) == [200]
        await eventually(lambda: not served.memory.claimed)
        readers = []
        for number in range(1, 4):
            readers.append(await served.talk())
            await readers[-1].send(load)
            await eventually(lambda: served.memory.claimed > number * size)  # noqa: B023  # awaited at once
        refused = await served.talk()
        await refused.send(load)
        answer = await refused.until(b"}}")
        assert statuses(answer) == [503]
        assert b"retry-after: 1" in answer.lower()
        assert b"--max-memory" in answer
        assert await answered(config) == [200]  # small answers wait for nothing
        committer = await served.talk()
        await committer.send(small)
        await eventually(lambda: served.memory.claimed > bound)  # a change that was done is answered
        assert await answered(small) == [503]
        assert statuses(await committer.rest()) == [200]
        served.later(flush_seconds(2 * size))
        await eventually(lambda: not served.memory.claimed)
        assert await answered(small) == [200]

    with_catalog(tmp_path, test, max_memory=bound)
