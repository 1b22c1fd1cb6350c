"""Limits of failed and of concurrent logins."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.server.realms import CREDENTIALS, ask, credentials_form, new_realm, token_of
from tests.server.servers import Remote, Server


def test_concurrent_logins_of_a_client_are_limited(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    with realm.server("--max-failures-per-address", "0") as server, ThreadPoolExecutor(40) as threads:
        forms = [credentials_form("bob", client_secret=f"wrong-{number}") for number in range(40)]
        begun = time.monotonic()
        statuses = [status for status, _, _ in threads.map(lambda form: ask(server, form), forms)]
        allowed = (
            12 + (time.monotonic() - begun) / 6
        )  # two threads verify secrets; one failure is forgiven in 6 s
    assert set(statuses) == {401, 429}
    assert statuses.count(401) <= allowed


def test_a_long_client_id_is_refused_before_it_is_remembered(server: Server) -> None:
    status, _, answer = ask(server, credentials_form("ann", client_id="x" * 513))
    assert (status, answer["error"]) == (401, "invalid_client")
    assert "512 characters" in answer["error_description"]


def until_locked_out(server: Server, form: dict[str, str], seconds: int) -> int:
    """Fail to log in until logins are refused without verification for some seconds more. Return the number of
    failures."""
    failures = 0
    while True:
        status, headers, answer = ask(server, form)
        if status == 429:
            assert answer["error"] == "temporarily_unavailable"
            if int(headers["retry-after"]) > seconds:
                return failures
            time.sleep(0.1)  # until one more failure is allowed, which makes the time longer
        else:
            assert status == 401
            failures += 1
            assert failures < 200


def test_failed_logins_of_a_client_are_limited(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    logins = tmp_path / "logins"
    with realm.server("--login-log", str(logins), "--max-failures-per-address", "0") as server:
        token_of(server, "bob")
        refusals = until_locked_out(server, credentials_form("bob", client_secret="wrong"), 4)
        refusals += until_locked_out(server, credentials_form("ann", client_secret="wrong"), 4)
        assert refusals >= 20
        assert ask(server, credentials_form("ann"))[0] == 429
        # A client whose secret was verified a short time ago is not locked out by others.
        assert ask(server, credentials_form("bob"))[0] == 200
        metrics = Remote(server.uri).raw("GET", "/metrics")[2]
        assert server.stop() == 0
    assert f'{{method="client-credentials",outcome="refused"}} {refusals}.0' in metrics
    assert 'polaris_spark_logins_total{method="client-credentials",outcome="succeeded"} 2.0' in metrics
    lines = logins.read_text().splitlines()
    found = [json.loads(line[line.index("{") :]) for line in lines if "login refused" in line]
    assert len(found) == refusals
    assert found[0] == {
        "method": "client-credentials",
        "address": "127.0.0.1",
        "reason": "wrong credentials",
        "client_id": "bob-id",
    }
    assert server.errors.count("login refused") <= 11  # as all records
    assert CREDENTIALS["bob"].secret.reveal() not in logins.read_text() + server.errors
    assert any("login succeeded" in line and '"principal": "bob"' in line for line in lines)


def test_failed_logins_from_an_address_are_limited(tmp_path: Path) -> None:
    realm = new_realm(tmp_path)
    with realm.server("--max-failures-per-address", "2") as server:  # one more failure is allowed after 30 s
        token_of(server, "bob")
        for name in ("x1", "x2"):
            assert ask(server, credentials_form("ann", client_id=name))[0] == 401
        status, headers, _ = ask(server, credentials_form("root"))
        assert status == 429
        assert 0 < int(headers["retry-after"]) <= 30
        assert ask(server, credentials_form("bob"))[0] == 200
