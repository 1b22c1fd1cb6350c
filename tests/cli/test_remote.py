"""Commands that a server executes: `--server URL`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import polaris_spark
from polaris_spark.cli import remote
from polaris_spark.cli.exit_codes import INTERRUPTED
from polaris_spark.jobs.set_catalog_properties import PROCEDURE
from tests.cli.catalogs import fill, run
from tests.server.servers import Server, token_file

TOKEN, PLAIN = "dddddddddddddddd", "aaaaaaaaaaaaaaaa"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a small catalog, with an administrator."""
    folder = tmp_path_factory.mktemp("remote")
    store = f"sqlite://{folder}/store.db"
    with polaris_spark.connect(store=store, warehouse=str(folder / "warehouse")) as catalog:
        fill(catalog)
    tokens = token_file(folder, {"root": f"{TOKEN} administrator", "ann": PLAIN})
    with Server(store, "--token-file", str(tokens)) as started:
        yield started


def test_a_job_runs_on_the_server(server: Server) -> None:
    address = ("--server", server.uri, "--token", "env:MINE")
    answer = run("maintain", "compact-index", *address, "--json", MINE=TOKEN)
    assert answer.code == 0
    assert {one["reference"] for one in answer.json} >= {"root", "catalogs"}
    assert run("maintain", "trim", *address, MINE=TOKEN).out == "nothing to do\n"
    assert run("maintain", "fsck", "--server", server.uri, POLARIS_SPARK_TOKEN=TOKEN).code == 0


def test_a_store_in_the_environment_does_not_disturb(server: Server) -> None:
    environment = {"POLARIS_SPARK_TOKEN": TOKEN, "POLARIS_SPARK_STORE": "sqlite:///nowhere.db"}
    assert run("maintain", "trim", "--server", server.uri, **environment).code == 0


def test_times_come_back_as_times(server: Server) -> None:
    short = ("--property", "grace=0s")
    refused = run("maintain", "trim", "--server", server.uri, *short, POLARIS_SPARK_TOKEN=TOKEN)
    assert "--property cannot be given with --server" in refused.err
    arguments = ("--retention", "30 d", "--dry-run", "--json")
    answer = run("maintain", "trim", "--server", server.uri, *arguments, POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.json == []


def test_metadata_is_exported_on_the_server(server: Server, tmp_path: Path) -> None:
    answer = run("export", "--server", server.uri, "--json", POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 0
    assert answer.json
    assert all(Path(one["metadata-location"].removeprefix("file://")).exists() for one in answer.json)
    outside = run("export", "--server", server.uri, "--location", str(tmp_path), POLARIS_SPARK_TOKEN=TOKEN)
    assert outside.code == 2
    assert not list(tmp_path.iterdir())


def test_properties_are_set_on_the_server(server: Server) -> None:
    address = ("--server", server.uri, "--json")
    assert run("properties", *address, "--set", "gc.enabled=false", POLARIS_SPARK_TOKEN=TOKEN).code == 0
    assert run("properties", *address, POLARIS_SPARK_TOKEN=TOKEN).json["gc.enabled"] == "false"
    reason = ("--message", "Ménage → OPS-12")
    assert run("properties", *address, "--unset", "gc.enabled", *reason, POLARIS_SPARK_TOKEN=TOKEN).code == 0
    assert "gc.enabled" not in run("properties", *address, POLARIS_SPARK_TOKEN=TOKEN).json
    summary = {"unset": "gc.enabled", "commit.message": reason[1]}
    store = server.process.args[server.process.args.index("serve") + 1]
    (newest,) = run("log", store, "--reference", "catalogs", "--limit", "1", "--json").json
    assert [change["summary"] for change in newest["changes"]] == [summary]


def test_refusals_of_the_server_are_reported_in_one_line(server: Server) -> None:
    answer = run("maintain", "trim", "--server", server.uri, POLARIS_SPARK_TOKEN=PLAIN)
    assert answer.code == 2
    assert "needs the token of an administrator" in answer.err
    assert answer.err.count("\n") == 1
    assert (
        "does not accept" in run("maintain", "trim", "--server", server.uri, POLARIS_SPARK_TOKEN="wrong").err
    )
    no_catalog = run("maintain", "trim", "--server", server.uri, "--catalog", "no", POLARIS_SPARK_TOKEN=TOKEN)
    assert "there is no catalog 'no'" in no_catalog.err
    job = run("maintain", "trim", "--server", server.uri, "--retention", "1 min", POLARIS_SPARK_TOKEN=TOKEN)
    assert "history cannot be trimmed" in job.err
    only_here = ("maintain", "migrate-realm", "--server", server.uri, "--target", "sqlite:///x.db")
    assert "No such option" in run(*only_here, POLARIS_SPARK_TOKEN=TOKEN).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sqlite:///x.db"], "STORE cannot be given with --server"),
        (["--realm", "other"], "--realm cannot be given with --server"),
        (["--branch", "other"], "--branch cannot be given with --server"),
        (["--no-spark"], ""),
        (["--spark"], "--spark cannot be given with --server"),
        (["--master", "local"], "--master cannot be given with --server"),
        (["--password", "env:X"], "--password cannot be given with --server"),
        (["--token", "secret"], "--token takes env:NAME"),
        (["--token", "env:UNSET_VARIABLE"], "'UNSET_VARIABLE' is not set"),
    ],
)
def test_options_that_cannot_be_combined_are_refused(server: Server, arguments: list[str], said: str) -> None:
    answer = run("maintain", "trim", *arguments, "--server", server.uri, POLARIS_SPARK_TOKEN=TOKEN)
    assert (answer.code == 0) == (said == "")
    assert said in answer.err
    assert "secret" not in answer.err


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "ftp://x", "http://", "http://u:secret@127.0.0.1:1", "x", "http://[x"]
)
def test_an_invalid_server_address_is_refused(address: str) -> None:
    answer = run("maintain", "trim", "--server", address, POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 2
    assert "--server" in answer.err
    assert answer.err.count("\n") == 1


def test_an_unreachable_server_is_reported() -> None:
    answer = run("maintain", "trim", "--server", "http://127.0.0.1:9", POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 2
    assert "cannot be reached" in answer.err


@pytest.mark.parametrize(
    ("address", "warns"),
    [
        ("http://catalog.invalid:1", True),
        ("http://192.0.2.1:1", True),
        ("https://catalog.invalid:1", False),
        ("http://localhost:1", False),
        ("http://[::1]:1", False),
    ],
)
def test_a_token_that_is_sent_without_encryption_over_a_network_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, address: str, *, warns: bool
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise remote.requests.ConnectionError("nothing is sent in this test")

    monkeypatch.setattr(remote.requests.Session, "request", unreachable)
    answer = run("maintain", "trim", "--server", address, POLARIS_SPARK_TOKEN=TOKEN)
    *warning, error = answer.err.splitlines()
    assert "cannot be reached" in error
    assert len(warning) == warns
    assert all("without encryption" in line for line in warning)


def test_a_command_without_store_and_server_names_both_options() -> None:
    for command in (["maintain", "trim"], ["export"], ["properties"]):
        answer = run(*command)
        assert answer.code == 2
        assert "STORE is missing" in answer.err


@pytest.mark.parametrize("command", [["maintain", "trim"], ["export"], ["properties"]])
def test_a_token_without_a_server_is_refused(command: list[str]) -> None:
    answer = run(*command, "sqlite:///x.db", "--token", "env:MINE", MINE=TOKEN)
    assert answer.code == 2
    assert "--token is the token for a server" in answer.err


class Scripted:
    """A server that gives scripted answers, and records the requests."""

    def __init__(self, *answers: tuple[int, Any], **headers: str) -> None:
        self.seen: list[str] = []
        script, seen = iter(answers), self.seen

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                seen.append(f"{self.command} {self.path.partition('/v1/')[2].partition('/')[0]}")
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, body = next(script)
                text = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(text))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET = do_DELETE = answer  # noqa: N815  # the names of http.server

            def log_message(self, *_: object) -> None:
                pass

        self._http = HTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Scripted:
        Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server, so that it refuses connections."""
        self._http.shutdown()
        self._http.server_close()


RUNNING = {"status": "running", "progress": {"step": "marking", "done": 1, "total": 2}}
BUSY = {"error": {"message": "busy", "type": "ServiceUnavailableException", "code": 503}}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the interval between polls to zero."""
    monkeypatch.setattr(remote, "POLL_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_long_job_is_followed_and_its_result_read_in_pages() -> None:
    columns = [{"name": one.name, "type": one.type} for one in PROCEDURE.columns]
    first = {"status": "succeeded", "columns": columns, "rows": [["a", "1", None]], "next-page-token": "1"}
    second = {"status": "succeeded", "columns": columns, "rows": [["b", "2", None]]}
    script = (202, RUNNING), (200, RUNNING), (503, BUSY), (200, first), (200, second)
    with Scripted(*script) as server:
        answer = run("properties", "--server", server.uri, "--json", POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.json == {"a": "1", "b": "2"}
    assert server.seen == ["POST procedures", *["GET runs"] * 4]


@pytest.mark.usefixtures("impatient")
def test_a_run_that_fails_later_is_reported() -> None:
    failed = {"status": "failed", "error": {"message": "history is gone", "type": "X", "code": 400}}
    with Scripted((202, RUNNING), (200, failed)) as server:
        answer = run("maintain", "trim", "--server", server.uri, POLARIS_SPARK_TOKEN=TOKEN)
    assert (answer.code, answer.err) == (2, "polaris-spark: history is gone\n")


def test_an_interrupt_cancels_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(remote.time, "sleep", interrupt)
    with Scripted((202, RUNNING), (204, None)) as server:
        address = ("--server", server.uri)
        assert run("maintain", "trim", *address, POLARIS_SPARK_TOKEN=TOKEN).code == INTERRUPTED
    assert server.seen == ["POST procedures", "DELETE runs"]


def test_an_interrupt_that_cannot_cancel_the_run_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(remote.time, "sleep", interrupt)
    with Scripted((202, RUNNING), (503, BUSY)) as server:
        answer = run("maintain", "trim", "--server", server.uri, POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 2
    assert re.search(r"the run [0-9a-f-]{36} was not cancelled: the server answers: busy", answer.err)


@pytest.mark.usefixtures("impatient")
def test_a_server_that_stays_busy_is_not_asked_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "BUSY_SECONDS", 0.0)
    with Scripted((202, RUNNING), (503, BUSY)) as server:
        answer = run("maintain", "trim", "--server", server.uri, POLARIS_SPARK_TOKEN=TOKEN)
    assert (answer.code, answer.err) == (2, "polaris-spark: the server answers: busy\n")


def test_the_error_for_a_server_that_dies_during_a_run_contains_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Scripted((202, RUNNING)) as server:
        monkeypatch.setattr(remote.time, "sleep", lambda _: server.stop())
        answer = run("maintain", "trim", "--server", server.uri, POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 2
    assert re.search(
        r"cannot be reached: .*; the run [0-9a-f-]{36} may still be in progress there\n$", answer.err
    )


@pytest.mark.parametrize("body", [[], {}, None, "x"])
def test_an_answer_that_is_not_a_run_is_reported_in_one_line(body: Any) -> None:
    with Scripted((200, body)) as server:
        answer = run("maintain", "trim", "--server", server.uri, POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 2
    assert "is this the address of polaris-spark serve?" in answer.err
    assert answer.err.count("\n") == 1


def test_the_token_is_not_sent_on_to_where_an_answer_leads() -> None:
    with Scripted((200, {})) as elsewhere, Scripted((307, {}), Location=f"{elsewhere.uri}/x") as server:
        answer = run("maintain", "trim", "--server", server.uri, POLARIS_SPARK_TOKEN=TOKEN)
    assert answer.code == 2
    assert "is this the address of polaris-spark serve" in answer.err
    assert (server.seen, elsewhere.seen) == (["POST procedures"], [])
