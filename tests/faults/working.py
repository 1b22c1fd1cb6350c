"""Processes that commit until they are stopped or killed, and write down what they were told.

Each appends to a journal of its own, one JSON line an event, on the disk before it goes on: `sent` before a request,
then what the answer said: `done`, `refused` (nothing was changed), `unknown`, or `wrong` for anything else. A process
that is killed leaves `sent` lines without an answer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final, NamedTuple

from polaris_spark.commits.applier import Applied, Decision
from polaris_spark.commits.handover import Handover
from polaris_spark.commits.intents import Intents, Published
from polaris_spark.commits.publication import Outcome, Publication
from polaris_spark.commits.retry import Turns
from polaris_spark.commits.rows import Head
from polaris_spark.errors import OutcomeUnknownError, TryAgainError
from tests.forking import context, preload
from tests.rest.client import Client, connect, new_key, set_properties, table, table_request, tables

PRINCIPAL = "worker"
"""Who commits: operation ids belong to their principal."""

CALM_S = 0.01
"""How long a thread waits after a refusal, seconds."""

OPENING_S = 120
"""How long a process may need to open a store that is in trouble, seconds."""

preload(__name__)


class Plan(NamedTuple):
    """The work of a process."""

    uri: str
    folder: Path
    number: int
    seed: int
    tables: tuple[str, ...]
    threads: int = 2
    knows_intents: bool = True
    """Whether the process may carry out changes of others, and hand its own over."""
    stops_at: str = ""
    """Step of group commit across processes at which the process gets `signal`, once; empty for none (`STEPS`)."""
    signal: int = signal.SIGKILL

    @property
    def journal(self) -> Path:
        """Path of the process's journal."""
        return self.folder / f"journal-{self.number}"

    @property
    def stop(self) -> Path:
        """Path of the file that makes all processes of the folder finish and end."""
        return self.folder / "stop"


class Journal:
    """A file of lines. Each has the time of the machine's monotonic clock in seconds. A line is on disk when `write`
    returns. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **event: Any) -> None:
        """Append one event."""
        os.write(self._file, json.dumps({**event, "at": time.monotonic()}).encode() + b"\n")
        os.fsync(self._file)


def start(plan: Plan) -> ForkServerProcess:
    """Start a process that works until the file `stop` exists."""
    process = context.Process(target=work, args=(plan,))
    process.start()
    return process


def start_earlier(plan: Plan, checkout: Path) -> ForkServerProcess:
    """Start a process that does the same with the code of an earlier checkout."""
    process = context.Process(target=_become_earlier, args=(plan, checkout))
    process.start()
    return process


_EARLIER = """
import sys
from pathlib import Path
from tests.faults.working import Plan, work
uri, folder, number, seed, *tables = sys.argv[1:]
work(Plan(uri, Path(folder), int(number), int(seed), tuple(tables)))
"""


def _become_earlier(plan: Plan, checkout: Path) -> None:
    os.chdir(checkout)  # a program given by `-c` searches this folder for modules first
    arguments = [plan.uri, str(plan.folder), str(plan.number), str(plan.seed), *plan.tables]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    os.execve(sys.executable, [sys.executable, "-c", _EARLIER, *arguments], environment)


def start_again(plan: Plan, requests: Sequence[dict[str, Any]]) -> ForkServerProcess:
    """Start a process that repeats requests with their earlier operation ids."""
    process = context.Process(target=repeat, args=(plan, requests))
    process.start()
    return process


def work(plan: Plan) -> None:
    """Commit from several threads until the file `stop` exists."""
    journal = Journal(plan.journal)
    if not plan.knows_intents:
        _forget_intents()
    if plan.stops_at:
        _stop_at(plan.stops_at, plan.signal, journal)
    with opened(plan) as session:
        client = Client(session)
        journal.write(event="open", pid=os.getpid())
        threads = [
            threading.Thread(target=_commit, args=(plan, client, journal, thread))
            for thread in range(plan.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _until_it_works(session.close)
    journal.write(event="closed")


def _forget_intents() -> None:
    """Make this process commit like a release without intents. Its commits drop the slots of others."""
    Handover.base_for_intent = lambda self, *, lost: None  # type: ignore[method-assign]
    Intents.decide = lambda self, applied, published, *, competing: None  # type: ignore[method-assign]
    Turns.has_strangers = lambda self, head: True  # type: ignore[method-assign]  # always takes turns


def _stop_as_owner(stop: Callable[[], None]) -> None:
    """Call `stop` as soon as this process has published changes as an intent."""
    publish = Intents.publish

    def publish_and_stop(self: Intents, published: Published, head: Head, *, write: bool = False) -> None:
        publish(self, published, head, write=write)
        if published.parts:
            stop()

    Intents.publish = publish_and_stop  # type: ignore[method-assign]


def _stop_before_swap(stop: Callable[[], None]) -> None:
    """Call `stop` before the swap of a commit that carries out an intent of another process."""
    publish, decide = Publication.publish, Intents.decide
    newest: list[Decision] = []

    def decide_and_note(
        self: Intents, applied: Applied, published: Published | None, *, competing: bool
    ) -> None:
        decide(self, applied, published, competing=competing)
        assert applied.decision is not None
        newest[:] = [applied.decision]

    def stop_and_publish(self: Publication) -> Outcome:
        if newest and newest[0].intents:
            stop()
        return publish(self)

    Intents.decide = decide_and_note  # type: ignore[method-assign]
    Publication.publish = stop_and_publish  # type: ignore[method-assign]


def _stop_after_swap(stop: Callable[[], None]) -> None:
    """Call `stop` after the swap of a commit that carries out an intent of another process, before it is answered."""
    committed = Intents.committed

    def stop_and_answer(self: Intents, decision: Decision, publication: Publication) -> None:
        if decision.intents:
            stop()
        committed(self, decision, publication)

    Intents.committed = stop_and_answer  # type: ignore[method-assign]


STEPS: Final = {
    "after it published an intent": _stop_as_owner,
    "before a swap that carries out an intent": _stop_before_swap,
    "after a swap that carries out an intent": _stop_after_swap,
}
"""Steps of group commit across processes: functions that make this process call another function at the step."""


def _stop_at(step: str, number: int, journal: Journal) -> None:
    """Make this process send itself a signal at a step, the first time that it gets there."""
    begun = threading.Lock()

    def stop() -> None:
        if begun.acquire(blocking=False):
            journal.write(event="stops", signal=number)
            os.kill(os.getpid(), number)

    STEPS[step](stop)


def repeat(plan: Plan, requests: Sequence[dict[str, Any]]) -> None:
    """Repeat requests until each of them has an answer."""
    journal = Journal(plan.journal)
    with opened(plan) as session:
        for request in requests:
            while _send(Client(session), journal, request) in ("refused", "unknown"):
                time.sleep(CALM_S)


def opened(plan: Plan) -> Any:
    """Open a session as soon as the store is available."""
    return _until_it_works(
        lambda: (
            connect(plan.uri, plan.folder / "warehouse", metadata_files="never", principal=PRINCIPAL).session
        )
    )


def _until_it_works(function: Any) -> Any:
    end = time.monotonic() + OPENING_S
    while True:
        try:
            return function()
        except (TryAgainError, OutcomeUnknownError):
            if time.monotonic() > end:
                raise
        time.sleep(CALM_S)


def _commit(plan: Plan, client: Client, journal: Journal, thread: int) -> None:
    rng = random.Random(f"{plan.seed}:{plan.number}:{thread}")
    made = 0
    while not plan.stop.exists():
        key = new_key()
        if rng.random() < 0.1:
            made += 1
            request = {"path": tables("db"), "body": table_request(f"t{plan.number}_{thread}_{made}")}
        else:
            update = set_properties(**{f"p{plan.number}_{thread}": key})
            where = table(rng.choice(plan.tables))
            request = {"path": where, "body": {"requirements": [], "updates": [update]}}
        if _send(client, journal, {"key": key, **request}) != "done":
            time.sleep(CALM_S)


def _send(client: Client, journal: Journal, request: dict[str, Any]) -> str:
    """Send a request, and write its outcome to the journal."""
    key = request["key"]
    journal.write(event="sent", **request)
    try:
        answer = client.send("POST", request["path"], request["body"], key=key)
    except BaseException as error:
        journal.write(event="wrong", key=key, answer=repr(error))
        raise
    verdict = {200: "done", 503: "refused", 504: "unknown"}.get(answer.status, "wrong")
    if answer.status == 409 and answer.kind[1] == "CommitFailedException":
        verdict = (
            "refused"  # as Iceberg's clients understand that they may try again: no request has requirements
        )
    told = {} if verdict == "done" else {"answer": [answer.status, answer.body]}
    journal.write(event=verdict, key=key, **told)
    return verdict
