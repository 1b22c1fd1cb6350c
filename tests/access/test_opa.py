"""Realms whose requests Open Policy Agent decides, by the policy of the guide and by wrong ones."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.access.authorizers import AuthorizerError, Question, Securable
from polaris_spark.access.decisions import decisions_of
from polaris_spark.access.opa import input_of, opa_authorizer
from polaris_spark.errors import ForbiddenError, InputError
from polaris_spark.testing.server import ReservedPort
from tests.access import authorizing
from tests.access.world import User, World
from tests.certificates import self_signed
from tests.servers.opa import OpenPolicyAgent

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "authorizers.md").read_text()
(POLICY,) = re.findall(r"```rego\n(.*?)```", GUIDE, re.DOTALL)

WRONG = """
package wrong

allow := "yes"

allowed := {"a": true}
"""

TABLE = Securable("table", "polaris", "main", ("shop",), "orders")
ONE = Question("default", "ann", ("analysts",), "TABLE_READ_DATA", (TABLE,))


@pytest.fixture(scope="module")
def opa() -> Iterator[OpenPolicyAgent]:
    with OpenPolicyAgent({"polaris.rego": POLICY, "wrong.rego": WRONG}) as server:
        yield server


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, User]]:
    """A realm with the tables `shop.orders`, `shop.eu.orders` and `hr.pay`, and the analyst `bob`."""
    world = World(tmp_path_factory.mktemp("w"))
    for levels in (("shop",), ("shop", "eu"), ("hr",)):
        world.namespace(*levels)
    for namespace, name in (("shop", "orders"), ("shop", "stock"), ("shop%1Feu", "orders"), ("hr", "pay")):
        world.table(namespace, name)
    credentials = world.principal("bob", "analysts")
    world.grant(["CATALOG_LIST"], role="analysts")
    bob = world.open(credentials)
    yield world, bob
    world.close()


Decide = Callable[..., User]


@pytest.fixture
def decide(
    opa: OpenPolicyAgent,
    opened: tuple[World, User],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Decide]:
    """Return a function that lets the server decide, with changed settings, and returns the analyst."""
    world, bob = opened
    monkeypatch.setenv("OPA_TOKEN", opa.token)
    usual = {
        "type": "opa",
        "url": opa.url,
        "path": "polaris/authz",
        "token": "env:OPA_TOKEN",
        "cache": "0 s",
        "timeout": "1 min",
    }

    def use(**settings: Any) -> User:
        authorizing.settings(tmp_path, monkeypatch, company={**usual, **settings})
        return bob

    use()
    assert world.root.call("set_authorizer", name="company")[0] == 200
    yield use
    use()
    assert world.root.call("set_authorizer")[0] == 200


def names(user: User, path: str) -> list[str]:
    status, body = user.send("GET", path)
    assert status == 200, body
    return [".".join(one) if isinstance(one, list) else one["name"] for one in next(iter(body.values()))]


def test_the_policy_of_the_guide_allows_by_role_and_namespace(
    decide: Decide, opened: tuple[World, User]
) -> None:
    bob, root = decide(), opened[0].root
    shop, hr = "v1/namespaces/shop/tables", "v1/namespaces/hr/tables"
    assert bob.status("GET", f"{shop}/orders") == 200
    assert bob.status("GET", "v1/namespaces/shop%1Feu/tables/orders") == 200
    assert bob.status("GET", f"{hr}/pay") == 404
    status, body = bob.send("DELETE", f"{shop}/orders")
    assert status == 403
    assert "needs the privilege TABLE_DROP on table shop.orders; the authorizer 'company'" in str(body)
    assert bob.status("POST", shop, {"name": "new", "schema": {"type": "struct", "fields": []}}) == 403
    assert root.status("GET", f"{hr}/pay") == 200


def test_lists_have_only_what_the_policy_allows(decide: Decide, opened: tuple[World, User]) -> None:
    bob = decide()
    assert names(bob, "v1/namespaces") == ["shop"]
    assert names(bob, "v1/namespaces/shop/tables") == ["orders", "stock"]
    assert bob.status("GET", "v1/namespaces/hr/tables") == 404
    assert names(opened[0].root, "v1/namespaces") == ["hr", "shop"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": "wrong"}, "has 'allow' of type str; the policy must set it to true or false"),
        ({"path": "missing"}, "set path to the path of the policy's package"),
        ({"path": "polaris/authz/allow"}, "OPA's response has no object 'result'"),
        ({"token": "other"}, "OPA responded with the status 401"),
    ],
)
def test_a_wrong_answer_refuses_the_request(decide: Decide, settings: dict[str, str], said: str) -> None:
    bob = decide(**settings)
    for path in ("v1/namespaces", "v1/namespaces/shop/tables/orders"):
        status, body = bob.send("GET", path)
        assert status == 503
        assert said in str(body)


def test_a_policy_without_positions_refuses_questions_about_several_targets(
    decide: Decide, opa: OpenPolicyAgent
) -> None:
    authorizer = opa_authorizer({"url": opa.url, "path": "wrong", "token": opa.token})
    with pytest.raises(AuthorizerError, match="must contain 'allowed'"):
        authorizer.decide(ONE._replace(securables=(TABLE, TABLE)), 10.0)


def test_a_server_that_is_down_refuses_the_request(decide: Decide) -> None:
    with ReservedPort() as port:
        bob = decide(url=f"http://127.0.0.1:{port.number}")
        status, body = bob.send("GET", "v1/namespaces/shop/tables/orders")
    assert status == 503
    assert "OPA cannot be reached" in str(body)


def test_a_slow_server_refuses_the_request(decide: Decide, opa: OpenPolicyAgent) -> None:
    bob = decide(timeout="50 ms")
    os.kill(opa.pid, signal.SIGSTOP)
    try:
        status, body = bob.send("GET", "v1/namespaces/shop/tables/orders")
    finally:
        os.kill(opa.pid, signal.SIGCONT)
    assert status == 503
    assert "OPA needed more than 0.05 s" in str(body)


def test_headers_that_never_end_hold_no_request() -> None:
    ended = threading.Event()

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not ended.wait(0.01):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=serve)
        server.start()
        try:
            authorizer = opa_authorizer(
                {"url": f"http://127.0.0.1:{listening.getsockname()[1]}", "path": "p"}
            )
            with pytest.raises(AuthorizerError, match=r"OPA needed more than 1 s"):
                authorizer.decide(ONE, 1.0)
        finally:
            ended.set()
            server.join()


def test_the_token_is_read_from_its_file_at_each_call(opa: OpenPolicyAgent, tmp_path: Path) -> None:
    path = tmp_path / "token"
    authorizer = opa_authorizer({"url": opa.url, "path": "polaris/authz", "token-file": str(path)})
    with pytest.raises(AuthorizerError, match="token file"):
        authorizer.decide(ONE, 10.0)
    path.write_text(f"{opa.token}\n")
    assert authorizer.decide(ONE, 10.0) == [True]
    for wrong in ("", "secret\nof two lines"):
        path.write_text(wrong)
        with pytest.raises(AuthorizerError, match="the token for OPA is empty, or has") as raised:
            authorizer.decide(ONE, 10.0)
        assert "secret" not in repr(raised.value)
    path.write_text("other\n")
    with pytest.raises(AuthorizerError, match="status 401"):
        authorizer.decide(ONE, 10.0)


def test_only_a_server_with_a_trusted_certificate_is_asked(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)
    with OpenPolicyAgent({"polaris.rego": POLICY}, certificate) as server:
        settings = {"url": server.url, "path": "polaris/authz", "token": server.token}
        trusting = opa_authorizer({**settings, "ca-file": str(certificate[0])})
        assert trusting.decide(ONE, 10.0) == [True]
        with pytest.raises(AuthorizerError, match=r"cannot be reached \(SSLError\)"):
            opa_authorizer(settings).decide(ONE, 10.0)


def test_the_input_has_the_form_that_the_guide_shows() -> None:
    (shown,) = [text for text in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL) if '"input"' in text]
    expected = json.loads(shown)["input"]
    found = input_of(ONE)
    expected["context"]["request_id"] = found["context"]["request_id"]
    assert found == expected


@pytest.mark.parametrize(
    ("securable", "expected"),
    [
        (Securable("realm"), ["ROOT default"]),
        (Securable("catalog", "c"), ["CATALOG c"]),
        (Securable("branch", "c", "dev"), ["CATALOG c", "BRANCH dev"]),
        (Securable("namespace", "c", "main", ("a", "b")), ["CATALOG c", "NAMESPACE a", "NAMESPACE b"]),
        (Securable("view", "c", "main", ("a",), "v"), ["CATALOG c", "NAMESPACE a", "TABLE_LIKE v"]),
    ],
)
def test_a_target_has_the_types_of_apache_polaris(securable: Securable, expected: list[str]) -> None:
    (target,) = input_of(ONE._replace(securables=(securable,)))["resource"]["targets"]
    assert [f"{one['type']} {one['name']}" for one in (*target["parents"], target)] == expected


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://opa.example.com"}, "must be an https:// URL"),
        ({"url": "https://user@opa.example.com"}, "must not have a user"),
        ({"url": "https://:secret@opa.example.com"}, "must not have a user"),
        ({"url": "ftp://user:secret@opa.example.com"}, "must not have a user"),
        ({"url": "https://opa.example.com", "token": "a\nb"}, "the token for OPA is empty, or has"),
        ({"url": "https://opa.example.com", "token": "env:NOT_SET"}, "NOT_SET"),
        ({"url": "https://opa.example.com", "token": "a", "token-file": "b"}, "set only one of them"),
        ({"url": "https://opa.example.com", "ca-file": "/missing.pem"}, "is not a file"),
        ({"url": "https://opa.example.com", "verify": False}, "unknown field `verify`"),
        ({}, "missing required field `url`"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        opa_authorizer({"path": "p", **settings})


def test_settings_of_the_guide_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = [text for text in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL) if '"opa"' in text]
    authorizing.settings(tmp_path, monkeypatch, **json.loads(shown)["authorizers"])
    with pytest.raises(ForbiddenError, match="OPA_TOKEN"):
        decisions_of("company")
    monkeypatch.setenv("OPA_TOKEN", "x")
    assert decisions_of("company") is decisions_of("company")
