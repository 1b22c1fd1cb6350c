"""Long polling over HTTP: many clients wait without threads, and the server goes on and ends."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.server.conftest import ADMINISTRATOR, TOKENS
from tests.server.servers import Remote, Server, token_file
from tests.server.test_ending import PROMPT

PATH = "polaris-spark/v1/changes"


def ask(remote: Remote, **query: str) -> tuple[int, Any]:
    status, _, text = remote.request("GET", PATH, query)
    return status, json.loads(text)


def create(remote: Remote, name: str) -> None:
    status, _, text = remote.request("POST", "v1/namespaces", body=json.dumps({"namespace": [name]}))
    assert status == 200, text


def started(folder: Path, *options: str) -> Server:
    tokens = token_file(folder, {"root": f"{ADMINISTRATOR} administrator"})
    arguments = ["--warehouse", str(folder / "w"), "--token-file", str(tokens), *options]
    return Server(f"sqlite://{folder}/store.db", *arguments)


def in_flight(remote: Remote, number: int) -> None:
    """Wait until this number of requests are in progress, besides the one that asks."""
    text = f"polaris_spark_http_requests_in_flight {number}.0"
    wait_until(lambda: text in remote.raw("GET", "/metrics")[2], text)


def test_clients_need_the_token_of_an_administrator(server: Server) -> None:
    assert ask(Remote(server.uri, TOKENS["ann"]))[0] == 403
    assert ask(Remote(server.uri))[0] == 401
    assert ask(Remote(server.uri, ADMINISTRATOR))[0] == 200


@pytest.mark.parametrize("query", [{"after": "x"}, {"limit": "0"}, {"wait": "soon"}], ids=str)
def test_bad_input_is_refused(server: Server, query: dict[str, str]) -> None:
    status, answer = ask(Remote(server.uri, ADMINISTRATOR), **query)
    assert (status, answer["error"]["type"]) == (400, "BadRequestException")


def test_a_position_that_is_not_in_the_history_is_refused(server: Server) -> None:
    remote = Remote(server.uri, ADMINISTRATOR)
    number = ask(remote)[1]["next"].split("-")[0]
    assert ask(remote, after=f"{number}-1", wait="60s")[0] == 409
    assert ask(remote, after="99999999", wait="60s")[0] == 409


def test_many_clients_wait_while_one_thread_serves_others(tmp_path: Path) -> None:
    with started(tmp_path, "--threads", "1") as server, ThreadPoolExecutor(30) as pool:
        remote = Remote(server.uri, ADMINISTRATOR)
        after = ask(remote)[1]["next"]
        answers = [pool.submit(ask, remote, after=after, wait="60s") for _ in range(30)]
        in_flight(remote, 30)
        assert remote.request("GET", "v1/config")[0] == 200
        assert not any(answer.done() for answer in answers)
        create(remote, "a")
        for answer in answers:
            status, found = answer.result(PATIENCE_S)
            assert (status, [change["name"] for change in found["changes"]]) == (200, ["a"])


def test_a_server_bounds_the_requests_that_wait(tmp_path: Path) -> None:
    with started(tmp_path, "--threads", "1") as server, ThreadPoolExecutor(32) as pool:
        remote = Remote(server.uri, ADMINISTRATOR)
        answers = [pool.submit(ask, remote, wait="60s") for _ in range(32)]
        in_flight(remote, 32)

        def refused() -> bool:
            status, answer = ask(remote, wait="1ms")
            return status == 503 and "wait for changes" in answer["error"]["message"]

        wait_until(refused, "the bound is reached")
        assert remote.request("GET", "v1/config")[0] == 200
        create(remote, "a")
        assert {answer.result(PATIENCE_S)[0] for answer in answers} == {200}
        assert ask(remote, wait="1ms")[0] == 200


def test_waits_end_when_the_server_stops(tmp_path: Path) -> None:
    with started(tmp_path) as server, ThreadPoolExecutor(10) as pool:
        remote = Remote(server.uri, ADMINISTRATOR)
        after = ask(remote)[1]["next"]
        answers = [pool.submit(ask, remote, after=after, wait="60s") for _ in range(10)]
        in_flight(remote, 10)
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < PROMPT
        assert server.errors == ""
        for answer in answers:
            status, found = answer.result(PATIENCE_S)
            assert (status, found["changes"], found["next"]) == (200, [], after)


def test_the_wait_of_a_client_that_is_gone_ends(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        remote = Remote(server.uri, ADMINISTRATOR)
        host, port = server.uri.removeprefix("http://").split(":")
        head = f"GET /{PATH}?wait=60s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMINISTRATOR}\r\n\r\n"
        for _ in range(3):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(head.encode())
                in_flight(remote, 1)
            in_flight(remote, 0)
        assert server.stop() == 0
        assert server.errors == ""
