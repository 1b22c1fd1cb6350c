"""Delivery to a receiver that fails: every event arrives at least once, in order, and none is lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.cli.cloud_events import event_of
from polaris_spark.cli.cursor import Cursor, DeadLetters
from polaris_spark.cli.delivery import Event, Sender, Settings, checked_url
from polaris_spark.cli.webhooks import secrets_of, webhook_requests
from polaris_spark.errors import InputError
from polaris_spark.testing.server import ReservedPort
from polaris_spark.testing.waiting import PATIENCE_S
from tests.cli.receivers import (
    CLOSE,
    DRIP,
    ENDLESS_ERROR,
    ENDLESS_REDIRECT,
    HANG,
    NONSENSE,
    OTHER_SECRET,
    RESET,
    SECRET,
    Receiver,
    Reply,
)
from tests.server.conftest import certificate

__all__ = ["certificate"]

SOURCE = "/catalogs/polaris/branches/main"


def event(number: int, name: str | None = None) -> Event:
    commit = {"number": number, "id": f"{number:x}", "time": "2026-01-31T00:00:00.000Z"}
    change = {
        "commit": commit,
        "position": f"{number}-{number:x}",
        "action": "create-namespace",
        "name": name or f"n{number}",
    }
    return event_of(change, SOURCE)


class Outcome:
    """A sender whose pauses take no time, and what became of its events."""

    def __init__(
        self,
        receiver: Receiver,
        dead: Path | None = None,
        *,
        secrets: tuple[str, ...] = (SECRET,),
        batched: bool = False,
        **settings: Any,
    ) -> None:
        self.pauses: list[float] = []
        chosen = Settings(receiver.url)._replace(**settings)
        requests = webhook_requests(secrets, batched=batched)
        letters = None if dead is None else DeadLetters(dead)
        self._dead = dead
        self._sender = Sender(chosen, requests, letters, sleep=self.pauses.append, jitter=lambda: 1.0)

    def send(self, *numbers: int, batch: int = 1) -> None:
        events = [event(number) for number in numbers]
        for start in range(0, len(events), batch):
            self._sender.deliver(events[start : start + batch])

    @property
    def dead(self) -> list[tuple[str, str, int]]:
        """(name, reason, attempts) of each dead letter."""
        assert self._dead is not None
        lines = self._dead.read_text().splitlines() if self._dead.exists() else []
        return [
            (one["event"]["data"]["name"], one["reason"], one["attempts"]) for one in map(json.loads, lines)
        ]


def test_events_arrive_in_order_signed_and_as_cloud_events() -> None:
    with Receiver() as receiver:
        Outcome(receiver).send(1, 2, 3)
        assert receiver.names() == ["n1", "n2", "n3"]
        assert [one.id for one in receiver.received] == ["1-1", "2-2", "3-3"]
        assert {one.content_type for one in receiver.received} == {"application/cloudevents+json"}
        (first,) = receiver.received[0].events
        assert first == {
            "specversion": "1.0",
            "id": "1-1",
            "source": SOURCE,
            "type": "io.polarisspark.create-namespace",
            "subject": "n1",
            "time": "2026-01-31T00:00:00Z",
            "datacontenttype": "application/json",
            "data": first["data"],
        }


@pytest.mark.parametrize(
    "reply",
    [500, 503, 429, 401, 403, 404, (302, {"Location": "/x"}), CLOSE, RESET, NONSENSE],
    ids=str,
)
def test_an_event_is_repeated_with_the_same_id_until_it_is_accepted(reply: Reply) -> None:
    with Receiver(200, reply, reply, reply) as receiver:
        outcome = Outcome(receiver)
        outcome.send(1, 2, 3)
        assert receiver.names() == ["n1", "n2", "n3"]
        assert [one.id for one in receiver.received] == ["1-1", *["2-2"] * 4, "3-3"]
        assert outcome.pauses == [1, 2, 4]


@pytest.mark.parametrize("reply", [HANG, DRIP])
def test_a_receiver_that_does_not_answer_in_time_gets_the_event_again(reply: Reply) -> None:
    with Receiver(reply, reply) as receiver:
        Outcome(receiver, timeout_seconds=0.3).send(1, 2)
        ids = [one.id for one in receiver.received]
        # On a slow machine, answers to further requests may come too late, too.
        assert ids.count("1-1") >= 3
        assert list(dict.fromkeys(ids)) == ["1-1", "2-2"]


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_request_that_takes_too_long_is_ended(
    encrypted: bool, certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
    with Receiver(DRIP, certificate=certificate if encrypted else None) as receiver:
        Outcome(receiver, tmp_path / "dead", attempts=1, timeout_seconds=1.0).send(1)
        for thread in threading.enumerate():
            if thread.name == "polaris-request":
                thread.join(PATIENCE_S)
                assert not thread.is_alive()


@pytest.mark.parametrize(("reply", "status"), [(ENDLESS_ERROR, 500), (ENDLESS_REDIRECT, 302)])
def test_the_content_of_an_answer_is_not_read(reply: Reply, status: int, tmp_path: Path) -> None:
    with Receiver(reply) as receiver:
        outcome = Outcome(receiver, tmp_path / "dead", attempts=1)
        outcome.send(1)
        ((name, reason, _),) = outcome.dead
        assert (name, f"the receiver answers {status}" in reason) == ("n1", True)


def test_text_of_the_receiver_is_shortened_and_safe_to_print(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Receiver(NONSENSE) as receiver:
        outcome = Outcome(receiver, tmp_path / "dead", attempts=1)
        outcome.send(1)
        ((_, reason, _),) = outcome.dead
        assert reason.startswith(r"what?\x1b[31mxxx")
        assert len(reason) < 400
        (line,) = capsys.readouterr().err.splitlines()
        assert line.isprintable()


def test_a_receiver_that_is_away_gets_the_event_when_it_is_back() -> None:
    with ReservedPort() as gone, Receiver() as receiver:
        outcome = Outcome(receiver, url=f"http://127.0.0.1:{gone.number}/hook")

        def back(seconds: float) -> None:
            outcome.pauses.append(seconds)
            if len(outcome.pauses) == 3:
                outcome._sender._settings = outcome._sender._settings._replace(url=receiver.url)

        outcome._sender._sleep = back
        outcome.send(1)
        assert (receiver.names(), outcome.pauses) == (["n1"], [1, 2, 4])


def test_pauses_double_up_to_a_limit() -> None:
    with Receiver(*[500] * 40) as receiver:
        outcome = Outcome(receiver, max_pause_seconds=20.0)
        outcome.send(1)
        assert outcome.pauses[:7] == [1, 2, 4, 8, 16, 20, 20]
        assert max(outcome.pauses) == 20


def test_the_receiver_may_ask_for_a_longer_pause_up_to_the_limit() -> None:
    replies = [(503, {"Retry-After": text}) for text in ("7", "9" * 9, "9" * 30, "soon")]
    with Receiver(*replies) as receiver:
        outcome = Outcome(receiver, max_pause_seconds=20.0)
        outcome.send(1)
        assert outcome.pauses == [7, 20, 4, 8]


@pytest.mark.parametrize("status", [400, 410, 413, 422])
def test_a_permanently_refused_event_becomes_a_dead_letter(status: int, tmp_path: Path) -> None:
    with Receiver(200, status) as receiver:
        outcome = Outcome(receiver, tmp_path / "dead")
        outcome.send(1, 2, 3)
        assert receiver.names() == ["n1", "n3"]
        assert outcome.dead == [("n2", f"the receiver answers {status}", 1)]
        assert outcome.pauses == []


def test_an_event_that_fails_too_often_becomes_a_dead_letter(tmp_path: Path) -> None:
    with Receiver(*[500] * 3) as receiver:
        outcome = Outcome(receiver, tmp_path / "dead", attempts=3)
        outcome.send(1, 2)
        assert receiver.names() == ["n2"]
        assert outcome.dead == [("n1", "the receiver answers 500", 3)]


def test_without_a_file_of_dead_letters_a_refused_event_is_repeated() -> None:
    with Receiver(*[410] * 15) as receiver:
        Outcome(receiver, attempts=3).send(1, 2)
        assert [one.id for one in receiver.received] == [*["1-1"] * 16, "2-2"]


def test_batches_are_arrays_of_events() -> None:
    with Receiver(500) as receiver:
        Outcome(receiver, batched=True).send(1, 2, 3, 4, 5, batch=2)
        assert [one.names for one in receiver.accepted] == [["n1", "n2"], ["n3", "n4"], ["n5"]]
        assert [one.id for one in receiver.received] == ["1-1_2-2", "1-1_2-2", "3-3_4-4", "5-5"]
        assert {one.content_type for one in receiver.received} == {"application/cloudevents-batch+json"}


def test_the_events_of_a_batch_that_is_refused_are_sent_one_by_one(tmp_path: Path) -> None:
    with Receiver(reply=lambda one: 400 if "n2" in one.names else 200) as receiver:
        outcome = Outcome(receiver, tmp_path / "dead", batched=True)
        outcome.send(1, 2, 3, 4, batch=3)
        assert receiver.names() == ["n1", "n3", "n4"]
        assert [name for name, *_ in outcome.dead] == ["n2"]


def test_each_secret_signs_so_that_secrets_can_be_replaced() -> None:
    with Receiver(secrets=(SECRET, OTHER_SECRET)) as receiver:
        Outcome(receiver, secrets=(SECRET, OTHER_SECRET)).send(1)
        assert receiver.names() == ["n1"]


def test_a_certificate_that_is_not_trusted_is_refused(
    certificate: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Receiver(certificate=certificate) as receiver:
        outcome = Outcome(receiver, tmp_path / "dead", attempts=1)
        outcome.send(1)
        assert receiver.received == []
        ((name, reason, _),) = outcome.dead
        assert (name, "certificate" in reason) == ("n1", True)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
        outcome.send(2)
        assert receiver.names() == ["n2"]


def test_passwords_of_the_user_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with Receiver() as receiver:
        seen: list[str | None] = []
        checked = receiver._checked
        receiver._checked = lambda headers, body: (
            seen.append(headers.get("Authorization")) or checked(headers, body)
        )  # type: ignore[func-returns-value,method-assign]
        Outcome(receiver).send(1)
        assert seen == [None]


def test_names_of_any_characters_are_sent() -> None:
    with Receiver() as receiver:
        sender = Outcome(receiver)._sender
        for number, name in enumerate(("`a\x1b[31m`", "表 🧊", "a" * 2_000), 1):
            sender.deliver([event(number, name)])
            (one,) = receiver.received[-1].events
            assert one["data"]["name"] == name
            assert one["subject"].isprintable()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://a/b",
        "http://",
        "http://[::1",
        "a.example",
        "http://a:0/",
        "https://a/#b",
        "http://a:x/",
        "http://a b/",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="write an http or https address"):
        checked_url("--post", url)


@pytest.mark.parametrize(
    "url",
    ["https://ann:geheim@hooks.example/", "https://ann:geheim@hooks.example/#b", "ftp://ann:geheim@a/"],
)
def test_an_address_with_a_password_is_refused_without_printing_it(url: str) -> None:
    with pytest.raises(InputError, match="user or password") as refused:
        checked_url("--post", url)
    assert "geheim" not in str(refused.value)


def test_an_address_without_encryption_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    checked_url("--post", "http://hooks.example/x")
    assert "without encryption" in capsys.readouterr().err
    checked_url("--post", "https://hooks.example/x")
    checked_url("--post", "http://localhost:8080/x")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "value", ["", "whsec_", "whsec_AAAA", "not base64!", "whsec_" + "A" * 400, f"{SECRET} x"]
)
def test_a_secret_that_cannot_be_used_is_refused_without_printing_it(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", value)
    with pytest.raises(InputError) as refused:
        secrets_of("env:HOOK_SECRET")
    assert len(value) < 10 or value not in str(refused.value)
    with pytest.raises(InputError, match="takes env:NAME"):
        secrets_of(SECRET)
    with pytest.raises(InputError, match="takes env:NAME"):
        secrets_of(None)


def test_a_cursor_keeps_the_last_position(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path / "cursor", SOURCE)
    assert cursor.read() is None
    for position in ("1-a", "2-b-3"):
        cursor.write(position)
        assert Cursor(tmp_path / "cursor", SOURCE).read() == position


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "17", '{"source": 1}', '{"source": "x", "position": "y"}', "\xff"]
)
def test_a_file_that_is_no_cursor_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cursor"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match="is not a cursor"):
        Cursor(path, SOURCE).read()
    assert path.read_bytes() == content.encode("latin-1")


def test_a_cursor_of_another_source_is_refused(tmp_path: Path) -> None:
    Cursor(tmp_path / "cursor", SOURCE).write("1-a")
    with pytest.raises(InputError, match="give another file"):
        Cursor(tmp_path / "cursor", "/catalogs/other/branches/main").read()


def test_a_cursor_is_for_one_process(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path / "cursor", SOURCE)
    with cursor.held(), pytest.raises(InputError, match="another process uses"), cursor.held():
        pass
    with cursor.held():
        pass


def test_a_dead_letter_after_an_incomplete_line_is_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "dead"
    path.write_text('{"event": {"id": "1-')
    DeadLetters(path).add([{"a": 1}, {"a": 2}])
    DeadLetters(path).add([{"a": 3}])
    assert [json.loads(line)["a"] for line in path.read_text().splitlines()[1:]] == [1, 2, 3]
