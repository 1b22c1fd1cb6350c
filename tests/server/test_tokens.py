"""Which clients may send requests, and which principal the log shows for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import OAuthError

from polaris_spark.errors import InputError
from polaris_spark.server import Tokens
from tests.rest.client import Client
from tests.server.conftest import TOKENS
from tests.server.servers import (
    Remote,
    Server,
    client,
    error_of,
    options,
    refused,
    refused_options,
    token_file,
)

SECRET = "s3cret-s3cret-s3cret"


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKENS['ann']}x",
        f"Bearer {TOKENS['ann'][:-1]}",
        f"Basic {TOKENS['ann']}",
        f"Bearer {TOKENS['ann']}, Bearer {TOKENS['ann']}",
        f"{TOKENS['ann']}",
        "Bearer \u00e9\u00ff",
        f"Bearer ann:{TOKENS['ann']}",
    ],
)
@pytest.mark.parametrize("target", ["/v1/config", "/v1/none", "/none", "/openapi.json"])
def test_without_a_valid_token_answers_reveal_nothing(
    server: Server, target: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    status, answered, body = Remote(server.uri).raw("GET", target, None, headers)
    assert (status, error_of(body)["type"]) == (401, "NotAuthorizedException")
    assert answered["www-authenticate"].startswith("Bearer")
    assert not any(token in body for token in TOKENS.values())


def test_a_second_authorization_header_is_refused(server: Server) -> None:
    connection = Remote(server.uri).connection()
    connection.putrequest("GET", "/v1/config")
    connection.putheader("Authorization", f"Bearer {TOKENS['ann']}")
    connection.putheader("Authorization", f"Bearer {TOKENS['bob']}")
    connection.endheaders()
    assert connection.getresponse().status == 401


def test_the_scheme_is_known_in_any_case(server: Server) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} {TOKENS['ann']}"}
        assert Remote(server.uri).raw("GET", "/v1/config", None, headers)[0] == 200


def test_the_log_has_the_principal_of_the_token(server: Server, folder: Path) -> None:
    for who, token in TOKENS.items():
        headers = {"X-Principal": "mallory", "X-Iceberg-Principal": "mallory", "X-Forwarded-User": "mallory"}
        body = {"namespace": [f"by {who}"], "properties": {"owner": "mallory"}}
        client(server, token).ok("POST", "v1/namespaces", body, headers=headers)
    logged = {change["name"]: change["principal"] for change in log_of(f"sqlite://{folder / 'store.db'}")}
    for who in TOKENS:
        assert logged[f"`by {who}`"] == who


def log_of(store: str) -> list[dict[str, str]]:
    """Return the changes of a store's catalog, as the command line shows them."""
    command = [sys.executable, "-c", "from polaris_spark.cli import main; main()", "log", store, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [entry for commit in json.loads(done.stdout) for entry in commit["changes"]]


def test_one_token_comes_from_the_environment(tmp_path: Path) -> None:
    arguments = ["--warehouse", str(tmp_path / "w"), "--token", "env:TOKEN", "--principal", "eve"]
    store = f"sqlite://{tmp_path / 'store.db'}"
    with Server(store, *arguments, env={"TOKEN": SECRET}) as server:
        client(server, SECRET).namespace("of_eve")
        assert client(server).send("GET", "v1/config").status == 401
        command = Path(f"/proc/{server.process.pid}/cmdline")
        assert not command.exists() or SECRET.encode() not in command.read_bytes()
        assert server.stop() == 0
        assert SECRET not in server.errors
    assert {e["name"]: e["principal"] for e in log_of(store)}["of_eve"] == "eve"


def test_unsafe_servers_do_not_start(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 'store.db'}"
    warehouse = ["--warehouse", str(tmp_path / "w")]
    shared = tmp_path / "shared"
    shared.write_text(f"ann:{SECRET}")
    shared.chmod(0o644)
    env = {"TOKEN": SECRET, "JUNK": f"{SECRET} {SECRET}"}
    complaints = {
        "needs tokens": [],
        "can be reached by others": ["--host", "0.0.0.0"],
        "so it needs tokens": ["--host", "0.0.0.0", "--insecure"],
        "leave one of them out": ["--token", "env:TOKEN", "--insecure"],
        "env:NAME, where NAME": ["--token", SECRET],
        "is not set": ["--token", "env:NO_SUCH_VARIABLE"],
        "characters that HTTP does not allow": ["--token", "env:JUNK"],
        "chmod 600": ["--token-file", str(shared)],
        "No such file": ["--token-file", str(tmp_path / "none")],
        "not from both": ["--token", "env:TOKEN", "--token-file", str(shared)],
        "both a certificate and its key": ["--insecure", "--tls-cert", "x"],
        "not an absolute path": ["--insecure", "--allow-location", "s3:relative"],
        "write s3.secret-access-key=env:NAME": ["--insecure", "--property", f"s3.secret-access-key={SECRET}"],
        "NAME=VALUE": ["--insecure", "--property", "x"],
        "the number of threads": ["--insecure", "--threads", "0"],
        "write a size": ["--insecure", "--max-body", "lots"],
    }
    for part, arguments in complaints.items():
        told = refused_options(store, *warehouse, *arguments, env=env)
        assert part in told, (arguments, told)
        assert SECRET not in told
    assert "needs tokens" in refused(store, *warehouse, "--port", "0")


def test_without_the_libraries_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError('no uvicorn', name='uvicorn')")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    told = refused("memory:", "--insecure", "--warehouse", str(tmp_path), env=env)
    assert "pip install 'polaris-spark[server]'" in told


def test_without_tokens_only_names_of_this_machine_are_answered(tmp_path: Path) -> None:
    with Server(f"sqlite://{tmp_path / 's.db'}", *options(tmp_path / "w")) as server:
        remote = Remote(server.uri)
        for host in ("localhost", "localhost:8181", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:80"):
            assert remote.raw("GET", "/v1/config", None, {"Host": host})[0] == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example:8181", "localhost.evil.example", "", "10.0.0.1"):
            for target in ("/v1/config", "/metrics"):
                assert remote.raw("GET", target, None, {"Host": host})[0] == 403, host


def test_lines_of_a_token_file_are_checked(tmp_path: Path) -> None:
    for lines in (
        "ann",
        "ann:",
        ":t0ken",
        "ann:t0k en",
        "\x01:t0ken",
        "ann:t0ken\nbob:t0ken",
        "ann:t0ken administrators",
        "ann:t0ken administrator of all",
        "ann:t0ken administrator\nann:t0ken",
        "",
    ):
        path = token_file(tmp_path, {})
        path.write_text(lines)
        with pytest.raises(InputError) as raised:
            Tokens.from_file(path)
        assert "t0k" not in str(raised.value)
    path.write_bytes(b"\xff:t0ken")
    with pytest.raises(InputError, match="UTF-8"):
        Tokens.from_file(path)


def test_a_token_is_known_by_all_of_it() -> None:
    tokens = Tokens({"one": "a", "two": "b"})
    assert [login and login.principal for login in map(tokens.authenticate, ("one", "two"))] == ["a", "b"]
    for wrong in ("on", "onee", "ONE", "one ", "", "\udc00"):
        assert tokens.authenticate(wrong) is None


def test_a_client_that_requests_a_token_gets_an_error_that_explains_tokens(server: Server) -> None:
    form = b"grant_type=client_credentials&client_id=ann&client_secret=secret&scope=catalog"
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    status, headers, body = Remote(server.uri).raw("POST", "/v1/oauth/tokens", form, kind)
    assert (status, headers["content-type"]) == (400, "application/json")
    answer = json.loads(body)
    assert answer.keys() == {"error", "error_description"}
    assert answer["error"] == "unsupported_grant_type"
    with pytest.raises(OAuthError, match="property 'token'"):
        load_catalog("shop", type="rest", uri=server.uri, credential="ann:secret")


def test_health_is_open_and_metrics_are_on_loopback(server: Server, ann: Client) -> None:
    assert Remote(server.uri).raw("GET", "/healthz")[::2] == (200, '{"status":"ok"}')
    assert Remote(server.uri).raw("GET", "/metrics")[0] == 200
