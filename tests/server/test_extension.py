"""Procedures and the description of views over HTTP require an administrator's token."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.errors import InputError
from polaris_spark.rest.access import Role
from polaris_spark.server import Tokens
from polaris_spark.testing.waiting import PATIENCE_S
from tests.rest.client import Client, new_key
from tests.server.conftest import ADMINISTRATOR, TOKENS
from tests.server.servers import Remote, Server, options, token_file

BASE = "polaris-spark/v1"
PATHS = [
    ("GET", "procedures"),
    ("POST", "procedures/fsck"),
    ("GET", "runs"),
    ("GET", "runs/x"),
    ("DELETE", "runs/x"),
    ("GET", "views"),
    ("GET", "views/tables"),
    ("POST", "views/tables/plan"),
]


def ask(remote: Remote, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request to the extension, and return the status and the parsed body of the answer."""
    status, _, text = remote.request(
        method, f"{BASE}/{path}", body=None if body is None else json.dumps(body)
    )
    return status, json.loads(text) if text else None


@pytest.fixture
def root(server: Server) -> Remote:
    """An administrator's client."""
    return Remote(server.uri, ADMINISTRATOR)


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_tokens_without_the_mark_of_an_administrator_are_refused(
    server: Server, method: str, path: str
) -> None:
    body = {"arguments": {}} if method == "POST" else None
    for token in TOKENS.values():
        status, answer = ask(Remote(server.uri, token), method, path, body)
        assert (status, answer["error"]["type"]) == (403, "ForbiddenException")
    assert ask(Remote(server.uri), method, path, body)[0] == 401
    assert ask(Remote(server.uri, "dddd"), method, path, body)[0] == 401


def test_a_server_without_tokens_has_no_administrator(tmp_path: Path) -> None:
    with Server(f"sqlite://{tmp_path}/store.db", *options(tmp_path / "w")) as server:
        for method, path in PATHS:
            body = {"arguments": {}} if method == "POST" else None
            assert ask(Remote(server.uri), method, path, body)[0] == 403


def test_the_one_token_of_the_environment_is_not_an_administrators(tmp_path: Path) -> None:
    arguments = ["--warehouse", str(tmp_path / "w"), "--token", "env:TOKEN"]
    with Server(f"sqlite://{tmp_path}/store.db", *arguments, env={"TOKEN": "eeee"}) as server:
        assert ask(Remote(server.uri, "eeee"), "GET", "procedures")[0] == 403


def test_a_procedure_runs_and_its_result_is_read_later(root: Remote, ann: Client, namespace: str) -> None:
    status, run = ask(root, "POST", "procedures/fsck", {"arguments": {}})
    assert status in (200, 202)
    until = time.monotonic() + PATIENCE_S
    while run["status"] == "running" and time.monotonic() < until:
        time.sleep(0.05)
        status, run = ask(root, "GET", f"runs/{run['id']}")
    assert (status, run["status"], run["principal"], run["rows"]) == (200, "succeeded", "root", [])


def test_a_catalog_is_chosen_by_its_name_in_the_path(root: Remote) -> None:
    assert ask(root, "GET", "polaris/procedures")[0] == 200
    assert ask(root, "GET", "nowhere/procedures")[0] == 404


def test_the_server_runs_nothing_that_its_clients_may_not_name(root: Remote, folder: Path) -> None:
    for procedure, arguments, wanted in [
        ("migrate_realm", {"target": f"sqlite://{folder}/other.db"}, 403),
        ("import_catalog", {"source": "pyiceberg", "location": "x"}, 403),
        ("remove_orphans", {"location": str(folder.parent), "dry_run": False, "force": True}, 403),
        ("export_metadata", {"location": str(folder / "elsewhere")}, 403),
    ]:
        status, _ = ask(root, "POST", f"procedures/{procedure}", {"arguments": arguments, "wait-seconds": 10})
        assert status == wanted, procedure
    assert not (folder / "other.db").exists()
    assert not (folder / "elsewhere").exists()


def test_a_call_that_is_repeated_with_its_idempotency_key_is_made_once(root: Remote) -> None:
    body = json.dumps({"arguments": {"name": "dev"}, "wait-seconds": 10})
    key, answers = new_key(), []
    for procedure in ("create_branch", "drop_branch", "undrop_branch", "drop_branch"):
        headers = {"Idempotency-Key": key} if procedure == "drop_branch" else {}
        path = f"{BASE}/procedures/{procedure}"
        answers.append(root.request("POST", path, body=body, headers=headers)[0])
    assert answers == [200] * 4
    assert ask(root, "POST", "procedures/describe_branch", json.loads(body))[0] == 200
    status, found = ask(root, "POST", "procedures/show_branches", {"wait-seconds": 10})
    assert (status, [row[0] for row in found["rows"]]) == (200, ["dev", "main"])


def test_a_body_over_the_bound_is_refused(root: Remote) -> None:
    body = {"arguments": {"retention": "x" * 17 * 2**20}}
    assert ask(root, "POST", "procedures/trim", body)[0] == 413


def test_the_server_stops_while_a_run_is_in_progress(tmp_path: Path) -> None:
    tokens = token_file(tmp_path, {"root": f"{ADMINISTRATOR} administrator"})
    arguments = ["--warehouse", str(tmp_path / "w"), "--token-file", str(tokens)]
    with Server(f"sqlite://{tmp_path}/store.db", *arguments) as server:
        remote = Remote(server.uri, ADMINISTRATOR)
        for n in range(6):
            assert ask(remote, "POST", "procedures/fsck", {"id": str(n)})[0] in (200, 202, 503)
        assert server.stop() == 0
        assert "Traceback" not in server.errors


def test_a_token_file_marks_administrators(tmp_path: Path) -> None:
    path = token_file(tmp_path, {"ann": "aaaa", "root": "dddd administrator", "carl": "cccc\tadministrator "})
    tokens = Tokens.from_file(path)
    found = [tokens.authenticate(token) for token in ("aaaa", "dddd", "cccc")]
    assert [login and (login.principal, login.role) for login in found] == [
        ("ann", Role.CLIENT),
        ("root", Role.ADMINISTRATOR),
        ("carl", Role.ADMINISTRATOR),
    ]


def test_a_token_file_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = token_file(tmp_path, {})
    path.write_text("ann:t0ken administrator\nann:t0ken\n")
    with pytest.raises(InputError, match="repeats a token") as told:
        Tokens.from_file(path)
    assert "t0ken" not in str(told.value)
