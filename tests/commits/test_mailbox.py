"""Messages between processes of one machine are delivered, or refused at once."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polaris_spark.clock import ManualClock, SystemClock
from polaris_spark.commits import mailbox
from polaris_spark.commits.mailbox import NoMailbox, SocketMailbox

Opened = Callable[[int], SocketMailbox]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="m") as path:  # a short path
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path, f"polaris-spark-{os.getuid()}")


@pytest.fixture
def opened(folder: Path) -> Iterator[Opened]:  # where the sockets are
    store, boxes = uuid.uuid4().hex, list[SocketMailbox]()

    def open_one(node: int) -> SocketMailbox:
        boxes.append(SocketMailbox(store, lambda: node, SystemClock()))
        boxes[-1].open()
        return boxes[-1]

    yield open_one
    for box in boxes:
        box.close()


def test_an_intent_arrives_and_makes_its_sender_near(opened: Opened) -> None:
    a, b = opened(1), opened(2)
    assert a.send(2, 77, b"intent")
    assert b.received([77]) == {77: b"intent"}
    assert not b.received([78])
    assert b.is_near(1)
    assert not a.is_near(2)
    b.remove([77, 78])
    assert not b.received([77])


def test_a_sender_stays_near_while_its_commits_take_seconds(folder: Path) -> None:
    """Commits take seconds if the database is far away."""
    clocks = SystemClock(), _Later()
    a, b = (SocketMailbox("a store", lambda node=node: node, clocks[node]) for node in (0, 1))
    with contextlib.closing(a), contextlib.closing(b):
        a.open()
        b.open()
        assert a.send(1, 77, b"intent")
        assert b.received([77])
        clocks[1].passed = 5_000.0
        assert b.is_near(0)
        clocks[1].passed = 60_000.0
        assert not b.is_near(0)


class _Later(SystemClock):
    """A clock that is `passed` milliseconds ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.passed


def test_an_answer_ends_the_wait(opened: Opened) -> None:
    a, b = opened(1), opened(2)
    clock = SystemClock()
    begun = clock.monotonic_ms()
    answers = threading.Timer(0.05, b.answer, [1, 77, b"answer"])
    answers.start()
    a.wait(20_000)
    answers.join()
    assert clock.monotonic_ms() - begun < 10_000
    assert not a.received([77])
    assert a.take_answer(77) == b"answer"
    assert not a.is_near(2)  # it may write its next intent to the database
    assert a.take_answer(77) is None


def test_an_answer_that_is_too_large_only_wakes(opened: Opened) -> None:
    a, b = opened(1), opened(2)
    b.answer(1, 77, bytes(mailbox.MOST_BYTES + 1))
    a.wait(20_000)
    assert a.take_answer(77) is None


def test_a_wait_ends_without_a_message(opened: Opened) -> None:
    opened(1).wait(5)


def test_a_message_that_cannot_be_delivered_is_refused(opened: Opened, folder: Path) -> None:
    a, b = opened(1), opened(2)
    assert not a.send(3, 77, b"nobody")
    assert not a.send(2, 77, bytes(mailbox.MOST_BYTES + 1))
    assert not b.received([77])
    assert a.send(2, 78, bytes(mailbox.MOST_BYTES))
    assert b.received([78]) == {78: bytes(mailbox.MOST_BYTES)}
    b.close()
    assert not a.send(2, 79, b"closed")
    assert {path.name.split("-")[1] for path in folder.iterdir()} == {"1"}


def test_an_intent_that_is_too_large_makes_its_sender_far(opened: Opened) -> None:
    a, b = opened(1), opened(2)
    assert a.send(2, 77, b"intent")
    b.received([77])
    assert b.is_near(1)
    assert not a.send(2, 78, bytes(mailbox.MOST_BYTES + 1))
    b.received([78])
    assert not b.is_near(1)


def test_a_default_timeout_of_the_program_does_not_block(folder: Path) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    try:
        box = SocketMailbox("store", lambda: 1, SystemClock())
        box.open()
        begun = time.monotonic()
        assert not box.received([77])
        box.wait(1)
        assert time.monotonic() - begun < 10
        box.close()
    finally:
        socket.setdefaulttimeout(before)


@pytest.mark.parametrize("removed", ["*", "*-2-1"], ids=["all", "the one for this sender"])
def test_a_socket_whose_file_was_removed_is_bound_again(opened: Opened, folder: Path, removed: str) -> None:
    a, b = opened(1), opened(2)
    for path in folder.glob(removed):
        path.unlink()
    assert not a.send(2, 77, b"intent")
    b.open()
    assert a.send(2, 77, b"intent")
    assert b.received([77]) == {77: b"intent"}


def test_an_interrupt_while_a_socket_is_bound_is_not_an_obstacle_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = SocketMailbox("store", lambda: 1, SystemClock())
    with monkeypatch.context() as patched:
        patched.setattr(mailbox, "_remove_dead", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            box.open()
    box.open()
    assert box.send(1, 77, b"intent")
    assert box.received([77]) == {77: b"intent"}
    box.close()


def _interrupted(_: object) -> None:
    raise KeyboardInterrupt


def test_the_socket_of_a_process_that_died_is_removed(opened: Opened, folder: Path) -> None:
    a = opened(1)
    for node in (2, 3):
        pid = os.fork()
        if not pid:
            opened(node)
            os._exit(0)  # as if killed: nothing is closed
        os.waitpid(pid, 0)
        assert len(list(folder.iterdir())) == 2 * mailbox.SOCKETS
        if node == 2:
            assert not a.send(2, 77, b"dead")
            assert len(list(folder.iterdir())) == 2 * mailbox.SOCKETS - 1  # the one that the sender tried
        else:
            opened(4).close()
            assert len(list(folder.iterdir())) == mailbox.SOCKETS


def test_a_forked_process_does_not_take_messages_of_its_parent(opened: Opened) -> None:
    a, b = opened(1), opened(2)
    assert a.send(2, 77, b"intent")
    pid = os.fork()
    if not pid:
        os._exit(int(bool(b.received([77])) or b.is_near(1)))
    assert os.waitpid(pid, 0)[1] == 0
    assert b.received([77]) == {77: b"intent"}


def test_a_full_queue_refuses_after_a_short_time(opened: Opened) -> None:
    a, b = opened(1), opened(2)
    sent = [a.send(2, id, bytes(mailbox.MOST_BYTES)) for id in range(100)]
    assert sent[0]
    assert not sent[-1]
    b.answer(1, 77, b"answer")
    arrived = [id in b.received([id]) for id in range(100)]
    assert arrived == sent


def test_intents_of_a_crowd_arrive_though_none_is_read_meanwhile(opened: Opened) -> None:
    crowd, b = [opened(node) for node in range(10, 42)], opened(2)
    assert all(one.send(2, id, b"intent") for id, one in enumerate(crowd))
    assert b.received(range(32)) == dict.fromkeys(range(32), b"intent")


def test_answers_to_a_crowd_arrive_though_none_is_read_meanwhile(opened: Opened) -> None:
    crowd, b = [opened(node) for node in range(10, 42)], opened(2)
    answer = b"a" * 30 * 2**10
    for node in range(10, 42):
        b.answer(node, 7, answer)
    assert all(one.take_answer(7) == answer for one in crowd)


def test_a_process_keeps_a_bounded_number_of_intents(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "_MOST_KEPT", 3)
    a, b = opened(1), opened(2)
    for id in range(5):
        assert a.send(2, id, b"intent")
        b.received([0])
    assert [id in b.received([id]) for id in range(5)] == [False, False, True, True, True]


def test_a_new_node_number_gets_a_new_socket(folder: Path) -> None:
    nodes = [1]
    a = SocketMailbox("store", lambda: nodes[-1], SystemClock())
    b = SocketMailbox("store", lambda: 9, SystemClock())
    a.open()
    b.open()
    nodes.append(2)
    a.open()
    assert not b.send(1, 77, b"intent")
    assert b.send(2, 77, b"intent")
    assert a.received([77]) == {77: b"intent"}
    a.close()
    b.close()
    assert not list(folder.iterdir())


def test_a_process_does_not_remove_the_socket_of_one_that_got_its_node_number(opened: Opened) -> None:
    before, b = opened(1), opened(2)
    after = opened(1)
    before.close()
    assert b.send(1, 77, b"intent")
    assert after.received([77]) == {77: b"intent"}


def test_processes_of_other_stores_are_not_reached(opened: Opened) -> None:
    opened(1)
    other = SocketMailbox("another store", lambda: 2, SystemClock())
    other.open()
    assert not other.send(1, 77, b"intent")
    other.close()


def _no_folder() -> str:
    raise FileNotFoundError("No usable temporary directory found")


@pytest.mark.parametrize(
    "fault", ["others may open it", "a link", "too long", "no folder for temporary files"]
)
def test_a_folder_that_is_not_safe_is_not_used(
    folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "others may open it":
        folder.mkdir()
        folder.chmod(0o755)
    elif fault == "a link":
        real = folder.parent / "real"
        real.mkdir(mode=0o700)
        folder.symlink_to(real)
    elif fault == "no folder for temporary files":
        monkeypatch.setattr(tempfile, "gettempdir", _no_folder)
    else:
        long = folder.parent / ("long" * 40)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
    box = SocketMailbox("store", lambda: 1, SystemClock())
    box.open()
    assert not box.send(1, 77, b"intent")
    box.wait(1)
    box.answer(1, 77, b"answer")
    assert not box.received([77])
    box.close()


def test_a_clock_that_is_not_the_machines_gets_no_mailbox(folder: Path) -> None:
    box = mailbox.mailbox_of("store", lambda: 1, ManualClock())
    assert isinstance(box, NoMailbox)
    assert isinstance(mailbox.mailbox_of("store", lambda: 1, SystemClock()), SocketMailbox)


def test_a_process_without_a_mailbox_sends_no_messages() -> None:
    box = NoMailbox(SystemClock())
    box.open()
    assert not box.send(1, 77, b"intent")
    assert not box.received([77])
    assert not box.is_near(1)
    box.wait(1)
