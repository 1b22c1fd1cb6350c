"""Logins of `--server URL` with the credentials of a principal, against a server of a realm with access control."""

from __future__ import annotations

from collections.abc import Iterator

import jwt
import pytest

from polaris_spark.cli.remote import RemoteServer
from polaris_spark.cli.server_tokens import IssuedTokens
from polaris_spark.jobs.registry import call
from polaris_spark.testing.waiting import wait_until
from tests.cli.catalogs import run
from tests.cli.test_watch import create, lines, watching
from tests.server.realms import CREDENTIALS, Realm, new_realm, status_of, token_of
from tests.server.servers import Server

ROOT = CREDENTIALS["root"].text()


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Realm:
    return new_realm(tmp_path_factory.mktemp("realm"))


@pytest.fixture(scope="module")
def server(realm: Realm) -> Iterator[Server]:
    with realm.server("--token-lifetime", "10 min") as started:
        yield started


def test_commands_log_in_with_the_credentials_of_a_principal(server: Server) -> None:
    environment = {"POLARIS_SPARK_TOKEN": "", "POLARIS_SPARK_CREDENTIAL": ROOT}
    answer = run("maintain", "trim", "--server", server.uri, **environment)
    assert (answer.code, answer.out) == (0, "nothing to do\n")


def test_changes_are_printed_to_a_principal_that_logs_in(server: Server, realm: Realm) -> None:
    with realm.session() as session:
        create(session, "watched")
    environment = {"POLARIS_SPARK_TOKEN": "", "POLARIS_SPARK_CREDENTIAL": ROOT}
    with watching("--server", server.uri, "--after", "oldest", **environment) as process:
        assert lines(process, 1)[0]["subject"] == "watched"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"POLARIS_SPARK_CREDENTIAL": "root-id:wrong-secret-1234"}, "issues no token for the credentials in"),
        ({"POLARIS_SPARK_CREDENTIAL": "wrong-secret-1234"}, "must have the form client_id:client_secret"),
        ({"POLARIS_SPARK_CREDENTIAL": ""}, "or credentials in 'POLARIS_SPARK_CREDENTIAL'"),
        ({"POLARIS_SPARK_CREDENTIAL": ROOT, "POLARIS_SPARK_TOKEN": "a-token"}, "the server answers"),
    ],
    ids=str,
)
def test_what_gives_no_token_is_an_error_without_the_secret(
    server: Server, environment: dict[str, str], message: str
) -> None:
    answer = run("maintain", "trim", "--server", server.uri, **{"POLARIS_SPARK_TOKEN": "", **environment})
    assert answer.code != 0
    assert message in answer.err
    assert "wrong-secret" not in answer.out + answer.err


def test_a_token_is_renewed_before_it_ends(server: Server) -> None:
    now = 1_000.0
    tokens = IssuedTokens(server.uri, CREDENTIALS["root"], lambda: now)
    first = tokens.current()
    claims = jwt.decode(first, options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == 600
    now += 539
    assert tokens.current() == first
    now += 2
    assert tokens.current() != first


def test_a_token_that_was_revoked_is_replaced(
    server: Server, realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARIS_SPARK_CREDENTIAL", ROOT)
    monkeypatch.delenv("POLARIS_SPARK_TOKEN", raising=False)
    remote = RemoteServer(server.uri, None, None)
    position = remote.changes({})["next"]
    token = token_of(server, "root")
    with realm.session() as session:
        assert call(session, "revoke_tokens") == [(1,)]
    wait_until(lambda: status_of(server, token) == 401, "the change holds")
    assert remote.changes({"after": position})["next"] == position
