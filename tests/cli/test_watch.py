"""`polaris-spark watch`: events on standard output and to webhooks, from a store and from a server, and after kills."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

import polaris_spark
from polaris_spark.cli.change_sources import ChangeBatch, follow
from polaris_spark.errors import StateError, TryAgainError
from polaris_spark.testing.server import ReservedPort
from polaris_spark.testing.waiting import PATIENCE_S
from tests.cli.catalogs import COMMITS, run
from tests.cli.receivers import CLOSE, RESET, SECRET, Received, Receiver, Reply
from tests.server.conftest import ADMINISTRATOR
from tests.server.servers import Remote, Server, token_file

MAIN_SOURCE = "/catalogs/polaris/branches/main"
QUICK = ("--max-backoff", "10ms")


@contextlib.contextmanager
def watching(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the command, which is killed at the end."""
    command = [sys.executable, "-c", "from polaris_spark.cli import main; main()", "watch", *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOOK_SECRET": SECRET, "POLARIS_SPARK_TOKEN": ADMINISTRATOR, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], number: int) -> list[dict[str, Any]]:
    """The next lines that a process prints."""
    out: IO[str] | None = process.stdout
    assert out is not None
    return [json.loads(line) for line in islice(iter(out.readline, ""), number)]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[polaris_spark.Session]:
    with polaris_spark.connect(
        store=f"sqlite://{tmp_path}/s.db", warehouse=str(tmp_path / "w"), principal="ada"
    ) as session:
        yield session


def create(session: Any, *names: str) -> None:
    for name in names:
        status, _, body = session.request("POST", "v1/namespaces", body=json.dumps({"namespace": [name]}))
        assert status == 200, body


def test_changes_of_a_store_are_printed_as_cloud_events(store: str) -> None:
    with watching(store, "--after", "0") as process:
        events = lines(process, COMMITS)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    for event in events:
        read = JSONFormat().read(CloudEvent, json.dumps(event))
        assert (read.get_source(), read.get_specversion()) == (MAIN_SOURCE, "1.0")
    assert [event["data"]["commit"]["number"] for event in events] == list(range(1, COMMITS + 1))
    assert events[0]["type"] == "io.polarisspark.create-namespace"
    assert events[3]["data"]["old-name"] == "db.old"
    assert len({event["id"] for event in events}) == COMMITS


def test_printing_goes_on_after_the_id_of_an_event(store: str) -> None:
    with watching(store, "--after", "oldest") as process:
        events = lines(process, COMMITS)
    with watching(store, "--after", events[3]["id"]) as process:
        assert lines(process, COMMITS - 4) == events[4:]


def test_only_wanted_changes_are_printed(store: str) -> None:
    wanted = ("--action", "drop-table", "--action", "create-view", "--principal", "ada")
    with watching(store, "--after", "0", *wanted, "--source", "urn:mine") as process:
        events = lines(process, 2)
    assert [event["subject"] for event in events] == ["db.gone", "db.v"]
    assert {event["source"] for event in events} == {"urn:mine"}


def test_a_server_gives_the_same_events_and_may_be_restarted(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, {"root": f"{ADMINISTRATOR} administrator"})
    arguments = ["--warehouse", str(tmp_path / "w"), "--token-file", str(tokens)]
    store = f"sqlite://{tmp_path}/s.db"
    with ReservedPort() as port, Server(store, *arguments, "--port", str(port.number)) as server:
        create(Remote(server.uri, ADMINISTRATOR), "a", "b")
        with watching("--server", server.uri, "--after", "0") as process:
            before = lines(process, 2)
            assert server.stop() == 0
            assert process.stderr is not None
            assert "the server cannot be reached" in process.stderr.readline()
            with Server(store, *arguments, "--port", str(port.number)) as again:
                create(Remote(again.uri, ADMINISTRATOR), "c")
                after = lines(process, 1)
    with watching(store, "--after", "0") as process:
        assert lines(process, 3) == before + after


def test_a_position_that_is_not_in_the_history_ends_the_command(store: str) -> None:
    for position in ("99", "3-1"):
        answer = run("watch", store, "--after", position)
        assert (answer.code, "begin again" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--after", "yesterday"], "--after is 'yesterday'"),
        (["--secret", "env:HOOK_SECRET"], "--secret has no effect without --post or --openlineage"),
        (["--cursor", "x"], "--cursor has no effect without --post or --openlineage"),
        (["--dead-letters", "x"], "--dead-letters has no effect without --post or --openlineage"),
        (["--attempts", "10"], "--attempts has no effect without --post or --openlineage"),
        (["--batch", "1"], "--batch has no effect without --post or --openlineage"),
        (["--timeout", "1s"], "--timeout has no effect without --post or --openlineage"),
        (["--max-backoff", "1s"], "--max-backoff has no effect without --post or --openlineage"),
        (
            ["--post", "http://localhost:1/", "--attempts", "3"],
            "--attempts has no effect without --dead-letters",
        ),
        (["--post", "http://localhost:1/"], "needs --cursor"),
        (["--post", "http://localhost:1/", "--cursor", "x"], "--secret takes env:NAME"),
        (
            ["--post", "localhost", "--cursor", "x", "--secret", "env:HOOK_SECRET"],
            "write an http or https address",
        ),
        (["--post", "http://localhost:1/", "--cursor", "x", "--secret", "env:NONE"], "is not set"),
        (
            [
                "--post",
                "http://localhost:1/",
                "--cursor",
                "x",
                "--secret",
                "env:HOOK_SECRET",
                "--timeout",
                "0s",
            ],
            "--timeout is '0s'",
        ),
        (["--branch", "none"], "has no branch 'none'"),
        (["--server", "http://127.0.0.1:1"], "STORE cannot be given with --server"),
    ],
    ids=str,
)
def test_bad_input_is_refused(store: str, arguments: list[str], message: str) -> None:
    answer = run("watch", store, *arguments, HOOK_SECRET=SECRET, POLARIS_SPARK_TOKEN="x")
    assert answer.code == 2
    assert message in answer.err


class Script:
    """A source that gives what it is told."""

    def __init__(self, *answers: ChangeBatch | Exception) -> None:
        self._answers = iter(answers)
        self.asked: list[tuple[str | None, bool]] = []

    def read(self, after: str | None, *, wait: bool) -> ChangeBatch:
        self.asked.append((after, wait))
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_source_that_fails_for_a_time_is_read_again_from_the_same_position() -> None:
    away = TryAgainError("away")
    first, second = ChangeBatch("c", "main", [], "1-a"), ChangeBatch("c", "main", [], "2-b")
    script, pauses = Script(away, first, *[away] * 9, second, away, StateError("gone")), list[float]()
    followed = follow(script, None, pauses.append)
    assert list(islice(followed, 2)) == [first, second]
    with pytest.raises(StateError, match="gone"):
        next(followed)
    assert script.asked == [
        (None, False),
        (None, False),
        *[("1-a", True)] * 10,
        *[("2-b", True)] * 2,
    ]
    assert pauses == [0.5, 0.5, 1, 2, 4, 8, 16, 30, 30, 30, 0.5]


# Webhooks


def hook(store: str, folder: Path, receiver: Receiver, *more: str) -> list[str]:
    """Arguments of a command that sends to a receiver."""
    cursor = ["--cursor", str(folder / "cursor")]
    return [store, "--post", receiver.url, "--secret", "env:HOOK_SECRET", *cursor, *QUICK, *more]


def test_new_changes_are_posted_and_the_cursor_is_stored(
    session: polaris_spark.Session, tmp_path: Path
) -> None:
    store = f"sqlite://{tmp_path}/s.db"
    create(session, "before")
    with Receiver() as receiver:
        with watching(*hook(store, tmp_path, receiver)):
            wait_for_file(tmp_path / "cursor")
            create(session, "a", "b")
            receiver.wait(lambda: receiver.names() == ["a", "b"])
        create(session, "c")
        with watching(*hook(store, tmp_path, receiver)):
            receiver.wait(lambda: "c" in receiver.names())
        assert distinct(receiver.names()) == ["a", "b", "c"]


def test_a_cursor_of_undone_commits_ends_the_command(store: str, tmp_path: Path) -> None:
    (tmp_path / "cursor").write_text(json.dumps({"source": MAIN_SOURCE, "position": "3-1"}))
    with Receiver() as receiver:
        answer = run("watch", *hook(store, tmp_path, receiver), HOOK_SECRET=SECRET)
        assert (answer.code, "not in the history any more" in answer.err) == (2, True)
        assert receiver.received == []


def test_changes_of_a_server_are_posted(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, {"root": f"{ADMINISTRATOR} administrator"})
    arguments = ["--warehouse", str(tmp_path / "w"), "--token-file", str(tokens)]
    with Server(f"sqlite://{tmp_path}/s.db", *arguments) as server, Receiver(500) as receiver:
        create(Remote(server.uri, ADMINISTRATOR), "a", "b")
        posted = hook("--server", tmp_path, receiver, "--after", "0")
        posted.insert(1, server.uri)
        with watching(*posted):
            receiver.wait(lambda: receiver.names() == ["a", "b"])


def test_a_dead_letter_does_not_stop_the_events_after_it(
    session: polaris_spark.Session, tmp_path: Path
) -> None:
    create(session, "a", "b", "c")
    dead = tmp_path / "dead"
    with Receiver(reply=lambda one: 410 if one.names == ["b"] else 200) as receiver:
        arguments = hook(f"sqlite://{tmp_path}/s.db", tmp_path, receiver, "--after", "0")
        with watching(*arguments, "--dead-letters", str(dead)):
            receiver.wait(lambda: receiver.names() == ["a", "c"])
    (line,) = dead.read_text().splitlines()
    assert json.loads(line)["event"]["subject"] == "b"


def distinct(names: list[str]) -> list[str]:
    """The names in the order of their first arrival."""
    return list(dict.fromkeys(names))


def wait_for_file(path: Path) -> None:
    from polaris_spark.testing.waiting import wait_until

    wait_until(path.exists, f"{path.name} exists", every_s=0.01)


class Killer:
    """Answers at random, and kills the sender at some requests: before it accepts the events, or after that and before
    the sender gets the answer."""

    def __init__(self, seed: int, kills: int) -> None:
        self._random = random.Random(seed)
        self._kills = kills
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, received: Received) -> Reply:
        chosen = self._random.random()
        if chosen < 0.2 and self._kills:
            self._kills -= 1
            assert self.process is not None
            self.process.kill()
            return self._random.choice([200, 500, CLOSE])
        return self._random.choice([500, 429, CLOSE, RESET]) if chosen < 0.5 else 200


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("seed", range(2))
def test_killed_senders_lose_nothing_and_keep_the_order(
    session: polaris_spark.Session, tmp_path: Path, seed: int, batch: int
) -> None:
    """A model: the receiver's list of first arrivals is the list of the changes, whatever fails in between."""
    store = f"sqlite://{tmp_path}/s.db"
    killer = Killer(seed, kills=4)
    expected = [f"n{n}" for n in range(30)]
    create(session, *expected[:5])

    def write() -> None:
        for start in range(5, 30, 5):
            create(session, *expected[start : start + 2])
            with session.transaction() as transaction:
                create(transaction, *expected[start + 2 : start + 5])

    writer = threading.Thread(target=write)
    with Receiver(reply=killer) as receiver:

        def arrived() -> bool:
            return len(set(receiver.names())) == len(expected)

        writer.start()
        arguments = hook(store, tmp_path, receiver, "--after", "0", "--batch", str(batch))
        while not arrived():
            with watching(*arguments) as process:
                killer.process = process
                receiver.wait(lambda: arrived() or process.poll() is not None)
            assert process.returncode == -signal.SIGKILL
        writer.join(PATIENCE_S)
        assert distinct(receiver.names()) == expected
        ids: dict[str, set[str]] = {}
        for one in receiver.received:
            for event in one.events:
                ids.setdefault(event["subject"], set()).add(event["id"])
        assert all(len(found) == 1 for found in ids.values())
        assert len({id for found in ids.values() for id in found}) == len(expected)
