"""Running a server: TLS, connections, many clients, metrics, and shutdown."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import sqlite3
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from polaris_spark.cli.app import app
from polaris_spark.jobs.registry import call
from polaris_spark.testing.waiting import PATIENCE_S, wait_until
from tests.rest.client import Client, at_once, connect, new_key, set_properties, table
from tests.server.conftest import TOKENS
from tests.server.servers import Remote, Server, client, options, refused, token_file


def test_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    tls = ["--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])]
    tokens = ["--token-file", str(token_file(tmp_path, TOKENS))]
    with Server(f"sqlite://{tmp_path / 's.db'}", "--warehouse", str(tmp_path / "w"), *tokens, *tls) as server:
        assert server.uri.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        client(server, TOKENS["ann"], context=trusting).namespace("db")
        with pytest.raises(ssl.SSLCertVerificationError):
            client(server, TOKENS["ann"], context=ssl.create_default_context()).send("GET", "v1/config")
        with pytest.raises((http.client.HTTPException, OSError)):
            client(server.uri.replace("https", "http"), TOKENS["ann"]).send("GET", "v1/config")
        old = ssl.create_default_context(cafile=str(certificate[0]))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert client(server, TOKENS["ann"], context=old).send("GET", "v1/config").status == 200


def test_files_of_tls_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    base = [f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w"), "--port", "0"]
    for name in ("junk", "none"):
        assert refused(*base, "--tls-cert", str(tmp_path / name), "--tls-key", str(tmp_path / name))


def test_other_addresses_need_a_token_for_metrics_and_are_warned_of(tmp_path: Path) -> None:
    arguments = ["--warehouse", str(tmp_path / "w"), "--host", "0.0.0.0", "--token", "env:TOKEN"]
    with Server(f"sqlite://{tmp_path / 's.db'}", *arguments, env={"TOKEN": "t" * 20}) as server:
        remote = Remote(server.uri.replace("0.0.0.0", "127.0.0.1"))
        assert remote.raw("GET", "/healthz")[0] == 200
        assert remote.raw("GET", "/metrics")[0] == 401
        assert remote.raw("GET", "/metrics", None, {"Authorization": f"Bearer {'t' * 20}"})[0] == 200
        assert server.stop() == 0
        assert "without TLS" in server.errors


@pytest.mark.parametrize(("given", "expected"), [((), 0), (("--metadata-files", "every-commit"), 1)])
def test_the_catalogs_properties_hold_unless_an_option_says_otherwise(
    tmp_path: Path, given: tuple[str, ...], expected: int
) -> None:
    store = f"sqlite://{tmp_path / 's.db'}"
    connect(store, tmp_path / "w", metadata_files="never").session.close()
    with Server(store, *options(tmp_path / "w"), *given) as server:
        remote = client(server)
        remote.namespace("db")
        remote.create("t")
    assert len(list((tmp_path / "w").rglob("*.metadata.json"))) == expected


def test_a_port_that_is_taken_is_reported(server: Server, tmp_path: Path) -> None:
    port = server.uri.rsplit(":", 1)[1]
    told = refused(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w"), "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port}" in told


def test_a_connection_carries_many_requests(ann: Client, namespace: str) -> None:
    remote: Remote = ann.session  # type: ignore[assignment]  # a Remote
    ann.send("GET", "v1/config")
    socket = remote.connection().sock
    for status, method, target in (
        (200, "GET", "v1/config"),
        (404, "GET", "v1/none"),
        (404, "HEAD", "v1/namespaces/none"),
        (204, "HEAD", f"v1/namespaces/{namespace}"),
        (400, "POST", "v1/namespaces"),
        (406, "PUT", "v1/namespaces"),
    ):
        assert ann.send(method, target).status == status
        assert remote.connection().sock is socket


def test_every_acknowledged_commit_of_many_clients_is_there_once(
    ann: Client, server: Server, namespace: str
) -> None:
    ann.create("t", (namespace,))
    before = len(ann.load("t", (namespace,))["metadata"]["metadata-log"])
    clients, commits = 16, 10

    def work(number: int) -> list[int]:
        one = client(server, TOKENS[("ann", "bob")[number % 2]])
        answers = []
        for i in range(commits):
            body = {"requirements": [], "updates": [set_properties(**{f"p{number}.{i}": "1"})]}
            key = new_key()
            answers += [one.send("POST", table("t", (namespace,)), body, key=key).status for _ in range(2)]
        return answers

    answers = at_once([lambda n=n: work(n) for n in range(clients)])  # type: ignore[misc]  # n is bound
    assert {status for one in answers for status in one} == {200}
    metadata = ann.load("t", (namespace,))["metadata"]
    assert {f"p{n}.{i}" for n in range(clients) for i in range(commits)} <= set(metadata["properties"])
    assert before + clients * commits >= len(metadata["metadata-log"])


def test_a_table_that_is_dropped_under_writers_is_dropped_once(
    ann: Client, server: Server, namespace: str
) -> None:
    ann.create("t", (namespace,))

    def drop() -> int:
        return client(server, TOKENS["bob"]).send("DELETE", table("t", (namespace,))).status

    def write() -> int:
        body = {"requirements": [], "updates": [set_properties(a="1")]}
        return client(server, TOKENS["ann"]).send("POST", table("t", (namespace,)), body).status

    statuses = at_once([drop, write] * 6)
    assert sorted(statuses[::2]) == [204] + [404] * 5
    assert set(statuses[1::2]) <= {200, 404}


def test_metrics_count_requests_by_route_and_changes_by_outcome(tmp_path: Path) -> None:
    with Server(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w")) as server:
        one = client(server)
        one.namespace("db")
        one.create("a" * 50)
        one.send("POST", "v1/namespaces", {"namespace": ["db"]})
        for i in range(5):
            one.send("GET", f"v1/none/{i}")
            one.send(f"M{'X' * i}", "v1/config")
        text = one.session.raw("GET", "/metrics")[2]  # type: ignore[attr-defined]  # a Remote
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    name, created = "polaris_spark_http_requests_total", ("route", "namespaces/{namespace}/tables")
    assert samples[name, ("method", "POST"), created, ("status", "200")] == 1
    assert samples[name, ("method", "other"), ("route", "unmatched"), ("status", "404")] == 5
    assert samples["polaris_spark_changes_total", ("outcome", "committed")] == 2
    assert samples["polaris_spark_changes_total", ("outcome", "conflict")] == 1
    assert samples[("polaris_spark_http_requests_in_flight",)] == 0
    assert any(key[0] == "polaris_spark_http_request_seconds_bucket" for key in samples)
    assert "aaaaa" not in text


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("ALTER TABLE 'references' RENAME COLUMN version TO other", "the store cannot be read"),
        ("DROP TABLE 'references'", "the database no longer contains a store"),
        ("DELETE FROM 'references'", "the database no longer contains a store"),
    ],
)
def test_health_tells_that_the_store_is_damaged_or_gone(tmp_path: Path, damage: str, reason: str) -> None:
    with Server(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w")) as server:
        assert client(server).session.raw("GET", "/healthz")[0] == 200  # type: ignore[attr-defined]  # a Remote
        with sqlite3.connect(tmp_path / "s.db") as database:
            database.execute(damage)
        remote = Remote(server.uri)
        wait_until(lambda: remote.raw("GET", "/healthz")[0] == 503, "it is told", every_s=0.05)
        answer = json.loads(remote.raw("GET", "/healthz")[2])
        assert answer == {"status": "unavailable", "reason": reason}


def _healthz(server: Server) -> tuple[int, str]:
    status, _, text = Remote(server.uri).raw("GET", "/healthz")
    return status, json.loads(text).get("reason", "")


def test_health_tells_that_the_realm_was_moved(tmp_path: Path) -> None:
    there = f"sqlite://{tmp_path / 'there.db'}"
    with Server(f"sqlite://{tmp_path / 'here.db'}", *options(tmp_path / "w")) as server:
        assert _healthz(server) == (200, "")
        with connect(f"sqlite://{tmp_path / 'here.db'}", tmp_path / "w").session as session:
            done = call(session, "migrate_realm", target=there)
        assert done
        moved = (503, "the realm was moved to another store")
        wait_until(lambda: _healthz(server) == moved, "health tells of the move", every_s=0.05)
        assert client(server).send("GET", "v1/namespaces").status == 400
        assert server.stop() == 0
        assert "there.db" in server.errors  # the log names the store


def test_a_server_and_its_health_tell_that_the_realm_was_deactivated(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 's.db'}"
    with Server(store, *options(tmp_path / "w")) as server:
        assert _healthz(server) == (200, "")
        assert CliRunner().invoke(app, ["realm", "deactivate", store, "default"]).exit_code == 0
        told = (503, "the realm was deactivated or purged")
        wait_until(lambda: _healthz(server) == told, "health tells of it", every_s=0.05)
        sent = client(server)

        def refusal() -> str | None:
            answer = sent.send("GET", "v1/namespaces")
            return None if answer.status == 200 else f"{answer.status} {answer.error['message']}"

        expected = "400 realm 'default' is INACTIVE; only an ACTIVE realm can be used"
        wait_until(lambda: refusal() == expected, "the server refuses requests", every_s=0.05)
        assert CliRunner().invoke(app, ["realm", "reactivate", store, "default"]).exit_code == 0
        assert refusal() is None  # at once
        wait_until(lambda: _healthz(server) == (200, ""), "health recovers", every_s=0.05)


@pytest.mark.parametrize("threads", ["2", "5"])
def test_changes_waiting_for_the_store_leave_threads_for_reads(tmp_path: Path, threads: str) -> None:
    with (
        Server(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w", "--threads", threads)) as server,
        contextlib.closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other,
    ):
        client(server).namespace("db")
        other.execute("BEGIN IMMEDIATE")
        answers: list[int] = []

        def change(number: int) -> None:
            one = client(server)
            answers.append(one.send("POST", "v1/namespaces", {"namespace": [f"n{number}"]}).status)

        changes = [threading.Thread(target=change, args=(number,)) for number in range(12)]
        for thread in changes:
            thread.start()
        remote, under_way = Remote(server.uri), "polaris_spark_http_requests_in_flight 12.0"
        wait_until(lambda: under_way in remote.raw("GET", "/metrics")[2], "changes wait")
        for _ in range(20):
            assert remote.raw("GET", "/v1/config")[0] == 200
            assert remote.raw("GET", "/v1/namespaces/db")[0] == 200
            assert remote.raw("GET", "/healthz")[0] == 200
        assert answers == []
        other.execute("ROLLBACK")
        for thread in changes:
            thread.join(PATIENCE_S)
        assert answers == [200] * 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_loses_nothing_that_was_acknowledged(tmp_path: Path, number: int) -> None:
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", tmp_path / "warehouse"
    acknowledged: list[str] = []
    enough = threading.Event()

    def write(server: Server, writer: int) -> None:
        one = client(server)
        for i in range(100_000):
            name = f"w{writer}.{i}"
            try:
                answer = one.commit("t", set_properties(**{name: "1"}))
            except (OSError, http.client.HTTPException):
                return
            assert answer.status in (200, 503), answer
            if answer.status == 200:
                acknowledged.append(name)
            if len(acknowledged) > 50:
                enough.set()

    with Server(store, *options(warehouse)) as server:
        one = client(server)
        one.namespace("db")
        one.create()
        one.session.connection().close()  # type: ignore[attr-defined]  # a Remote
        writers = [threading.Thread(target=write, args=(server, n)) for n in range(8)]
        for writer in writers:
            writer.start()
        assert enough.wait(PATIENCE_S)
        assert server.stop(number) == 0
        for writer in writers:
            writer.join(PATIENCE_S)
        assert server.errors == ""
    assert set(leases(store)) == {True}
    direct = connect(store, None)
    assert set(acknowledged) <= set(direct.load("t")["metadata"]["properties"])
    direct.session.close()


def leases(store: str) -> list[bool]:
    """Return, for each lease that `polaris-spark info` shows, whether it was released."""
    command = [sys.executable, "-c", "from polaris_spark.cli import main; main()", "info", store, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [lease["released"] for lease in json.loads(done.stdout)["node-leases"]]


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_server_with_a_removed_store_is_unavailable(tmp_path: Path, suffix: str) -> None:
    store = tmp_path / "s.db"
    with Server(f"sqlite://{store}", *options(tmp_path / "w")) as server:
        remote = client(server)
        remote.namespace("db")
        assert remote.session.raw("GET", "/healthz")[0] == 200  # type: ignore[attr-defined]  # a Remote
        Path(f"{store}{suffix}").unlink()
        unknown, refused = (504, "CommitStateUnknownException"), (400, "BadRequestException")
        for kinds in ({unknown, refused}, {refused}):
            refusal = remote.send("POST", "v1/namespaces", {"namespace": ["lost"]})
            assert refusal.kind in kinds
            assert "was removed or replaced" in refusal.error["message"]
        assert remote.send("GET", "v1/namespaces").status == 400
        wait_until(
            lambda: remote.session.raw("GET", "/healthz")[0] == 503,  # type: ignore[attr-defined]  # a Remote
            "it is told",
            every_s=0.05,
        )
        server.stop()
    assert store.exists() == bool(suffix)
    if suffix:
        again = connect(f"sqlite://{store}", tmp_path / "w")
        assert again.ok("GET", "v1/namespaces")["namespaces"] in ([["db"]], [["db"], ["lost"]])
        again.session.close()
