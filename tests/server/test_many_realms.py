"""One server serves many realms, and no realm learns anything of another one."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest

import polaris_spark
from polaris_spark.catalog.catalogs.catalogs import create_realm
from polaris_spark.commits.change import Operation
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.connections import StoreConnection, connect_store
from polaris_spark.system.realms import RealmState
from polaris_spark.system.tasks import Tasks
from polaris_spark.testing.waiting import wait_until
from tests.cli.catalogs import run
from tests.rest.client import new_key
from tests.server.realms import FORM, KEY, Realm, credentials_form, exchange_form, new_realm
from tests.server.servers import PATIENCE, Remote, Server

STATIC = {"sales": "static-token-of-sales", "plain": "static-token-of-plain"}
NOT_SERVED = ("unknown", "inactive", "purged", "empty", "::system")
"""Names that a client must not be able to tell apart."""
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "a", "type": "long", "required": False}]}

Answer = tuple[int, dict[str, str], str]


class Tenant:
    """A client of one realm."""

    def __init__(self, uri: str, realm: str, token: str | None = None, *, by: str = "header") -> None:
        self.uri = uri
        self.realm = realm
        self.by = by
        self.token = token
        self._remote = Remote(uri)

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request, and return status, headers and body."""
        sent, target = {"Content-Type": "application/json", **(headers or {})}, f"/{path}"
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        if self.by == "header":
            sent["Polaris-Realm"] = self.realm
        elif self.by == "path":
            target = f"/realms/{self.realm}{target}"
        elif self.by == "host":
            sent["Host"] = f"{self.realm}.catalog.test:8181"
        if query:
            target += "?" + urlencode(query)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return self._remote.raw(method, target, content, sent)

    def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """Send a request that must succeed, and return the parsed body."""
        status, _, text = self.send(method, path, body, **more)
        assert status in (200, 202, 204), text
        return json.loads(text) if text else None

    def ask(self, form: Mapping[str, str]) -> Answer:
        """Send a request for a token."""
        return self.send("POST", "v1/oauth/tokens", urlencode(form).encode(), FORM)

    def log_in(self, who: str = "ann") -> Tenant:
        """Return a client that has logged in."""
        status, _, text = self.ask(credentials_form(who))
        assert status == 200, text
        return Tenant(self.uri, self.realm, json.loads(text)["access_token"], by=self.by)

    def names(self) -> list[str]:
        """Return the names of the namespaces."""
        return sorted(one[0] for one in self.ok("GET", "v1/namespaces")["namespaces"])


class World(NamedTuple):
    """A store with the realms `sales` and `hr`, which have access control and the same credentials, the realm `plain`
    without it, and the realms of `NOT_SERVED`; and a server of all of them."""

    store: str
    server: Server

    def tenant(self, realm: str, token: str | None = None, *, by: str = "header") -> Tenant:
        """Return a client of a realm."""
        return Tenant(self.server.uri, realm, token, by=by)

    def connection(self) -> StoreConnection:
        """Open the store in this process."""
        return connect_store(StoreURI.parse(self.store), create=False)

    def move(self, realm: str, *states: RealmState) -> None:
        """Change the state of a realm."""
        connection = self.connection()
        try:
            for state in states:
                connection.realms.move(realm, state)
        finally:
            connection.close()


def new_store(folder: Path) -> tuple[str, Realm, Realm]:
    """Make the store of `World`."""
    sales, hr = new_realm(folder, "sales"), new_realm(folder, "hr")
    for name in ("plain", "inactive", "purged"):
        polaris_spark.connect(store=sales.store, warehouse=str(folder / f"w-{name}"), realm=name).close()
    connection = connect_store(StoreURI.parse(sales.store))
    try:
        create_realm(connection, "empty", Operation(b"", "root"))
    finally:
        connection.close()
    return sales.store, sales, hr


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("realms")
    store, _, _ = new_store(folder)
    tokens = folder / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("".join(f"ann:{token} realm={realm}\n" for realm, token in STATIC.items()))
    options = ["--realms", "all", "--token-key", "env:KEY", "--token-file", str(tokens)]
    options += ["--realm-domain", "catalog.test", "--max-failures-per-address", "0", "--max-open-realms", "2"]
    with Server(store, *options, env={"KEY": KEY}) as server:
        made = World(store, server)
        made.move("inactive", RealmState.INACTIVE)
        made.move("purged", RealmState.INACTIVE, RealmState.PURGING, RealmState.PURGED, RealmState.GONE)
        for realm in ("sales", "hr"):
            root = made.tenant(realm).log_in("root")
            for name in (f"of_{realm}", "db", "db2"):
                root.ok("POST", "v1/namespaces", {"namespace": [name]})
        yield made


def described(answer: Answer) -> tuple[int, dict[str, str], str]:
    """Return what a client sees of an answer."""
    status, headers, body = answer
    return status, {name: text for name, text in headers.items() if name.lower() != "date"}, body


@pytest.mark.parametrize("by", ["header", "path", "host"])
def test_a_request_names_its_realm(world: World, by: str) -> None:
    for realm in ("sales", "hr"):
        tenant = world.tenant(realm, by=by).log_in("root")
        assert tenant.names() == ["db", "db2", f"of_{realm}"]
        assert tenant.ok("GET", "v1/config")["overrides"] == {}
        assert tenant.send("GET", "v1/polaris/namespaces/db")[0] == 200


def test_requests_must_name_one_realm(world: World) -> None:
    token = world.tenant("sales").log_in().token
    nowhere = Tenant(world.server.uri, "", token, by="nothing")
    assert nowhere.send("GET", "v1/namespaces")[0] == 400
    for given in ({"Polaris-Realm": ""}, {"Polaris-Realm": "sales, hr"}):
        assert nowhere.send("GET", "v1/namespaces", headers=given)[0] in (400, 401)
    both = Tenant(world.server.uri, "sales", token, by="path")
    assert both.send("GET", "v1/namespaces", headers={"Polaris-Realm": "sales"})[0] == 200
    assert both.send("GET", "v1/namespaces", headers={"Polaris-Realm": "hr"})[0] == 400
    assert both.send("GET", "v1/namespaces", headers={"Host": "hr.catalog.test"})[0] == 400
    for path in ("realms/../v1/config", "realms//v1/config", "realms/%ff/v1/config", "realms/sales"):
        assert nowhere.send("GET", path)[0] in (400, 401, 404)


SPELLINGS = {
    "/realms/%73ales/v1/namespaces": 200,
    "/realms/Sales/v1/namespaces": 401,
    "/realms/sales%20/v1/namespaces": 401,
    "/realms/sales%00/v1/namespaces": 401,
    "/realms/sales%2F..%2Fhr/v1/namespaces": 401,
    "/realms/hr/../sales/v1/namespaces": 401,
    "/realms/hr/realms/sales/v1/namespaces": 401,
    "/realms/sales/../hr/v1/namespaces": 404,
    "/realms/sales/realms/hr/v1/namespaces": 404,
    "/realms/%3A%3Asystem/v1/namespaces": 401,
    f"/realms/{'x' * 5_000}/v1/namespaces": 401,
    "/%72ealms/sales/v1/namespaces": 400,
    "//realms/sales/v1/namespaces": 400,
}
"""Statuses of paths, for a client that has a token of the realm `sales`."""


def test_a_path_names_exactly_one_realm(world: World) -> None:
    tenant = Tenant(world.server.uri, "", world.tenant("sales").log_in().token, by="nothing")
    for path, status in SPELLINGS.items():
        answered, _, text = tenant.send("GET", path.removeprefix("/"))
        assert answered == status, path
        assert "of_hr" not in text


HEADERS = {
    ("Host: SALES.Catalog.Test.:8181",): 200,
    ("Host: sales.catalog.test:",): 200,
    ("Polaris-Realm: \t sales \t",): 200,
    ("Host: sales.catalog.test", "Polaris-Realm: sales"): 200,
    ("Host: hr.catalog.test", "Host: sales.catalog.test"): 400,
    ("Host: x", "Polaris-Realm: hr", "Polaris-Realm: sales"): 400,
    ("Host: x", "Polaris-Realm: sales", "Polaris-Realm: sales"): 400,
    ("Host: x@sales.catalog.test",): 400,
    ("Host: hr.sales.catalog.test",): 400,
    ("Host: sales..catalog.test",): 400,
    ("Host: sales.catalog.test.evil.test",): 400,
    ("Host: x", "Polaris_Realm: sales"): 400,
    ("Host: x", "X-Forwarded-Host: sales.catalog.test"): 400,
    ("Host: x", "Polaris-Realm: hr", "X-Forwarded-Host: sales.catalog.test"): 401,
    ("Host: x", "Polaris-Realm: sales,hr"): 401,
}
"""Statuses of headers, for a client that has a token of the realm `sales`."""


def test_headers_name_exactly_one_realm(world: World) -> None:
    tenant = world.tenant("sales").log_in()
    place = Remote(world.server.uri).uri
    for given, status in HEADERS.items():
        lines = ["GET /v1/namespaces HTTP/1.1", f"Authorization: Bearer {tenant.token}", "Connection: close"]
        with socket.create_connection((place.hostname, place.port), PATIENCE) as connection:
            connection.sendall("\r\n".join([*lines, *given, "", ""]).encode())
            answer = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        assert answer.split()[1] == str(status), given
        assert "of_hr" not in answer


def test_a_token_is_valid_in_one_realm_only(world: World) -> None:
    ours, theirs = world.tenant("sales").log_in(), world.tenant("hr").log_in()
    for token in (ours.token, STATIC["sales"]):
        assert token is not None
        assert world.tenant("sales", token).send("GET", "v1/namespaces")[0] == 200
        for by in ("header", "path", "host"):  # at once, while the server remembers the verified token
            assert world.tenant("hr", token, by=by).send("GET", "v1/namespaces")[0] == 401
        assert world.tenant("hr").ask(exchange_form(token))[0] == 400
        assert world.tenant("plain", token).send("GET", "v1/namespaces")[0] == 401
    assert world.tenant("sales", theirs.token).send("GET", "v1/namespaces")[0] == 401
    assert world.tenant("plain", STATIC["plain"]).send("GET", "v1/namespaces")[0] == 200
    assert theirs.send("GET", "v1/namespaces")[0] == 200


def test_realms_that_are_not_served_answer_alike(world: World) -> None:
    token, own = world.tenant("sales").log_in().token, credentials_form("ann")
    wrong = {**own, "client_secret": "wrong"}
    for realm in (*NOT_SERVED, "hr"):
        for tried in (None, "wrong", STATIC["sales"], token):
            tenant, expected = world.tenant(realm, tried), world.tenant(f"not-{realm}", tried)
            for target in ("v1/config", "v1/none", "v1/namespaces/db/tables", "openapi.json"):
                answer = tenant.send("GET", target)
                assert answer[0] == 401
                assert described(answer) == described(expected.send("GET", target)), (realm, target)
        expected = world.tenant(f"not-{realm}")
        for form in (wrong, exchange_form(token or ""), exchange_form("x"), {"grant_type": "x"}, {}):
            assert described(world.tenant(realm).ask(form)) == described(expected.ask(form)), (realm, form)
    for realm in NOT_SERVED:
        assert described(world.tenant(realm).ask(own)) == described(world.tenant(f"not-{realm}").ask(own))


def test_page_tokens_tags_keys_and_ids_mean_nothing_in_another_realm(world: World) -> None:
    ours, theirs = world.tenant("sales").log_in("root"), world.tenant("hr").log_in("root")
    page = ours.ok("GET", "v1/namespaces", query={"pageSize": "1", "pageToken": ""})["next-page-token"]
    assert theirs.send("GET", "v1/namespaces", query={"pageSize": "1", "pageToken": page})[0] == 400

    key = {"Idempotency-Key": new_key()}
    table = {"name": "t", "schema": SCHEMA}
    made = [one.ok("POST", "v1/namespaces/db/tables", table, headers=key) for one in (ours, theirs)]
    locations = [one["metadata"]["location"] for one in made]
    assert made[0]["metadata"]["table-uuid"] != made[1]["metadata"]["table-uuid"]
    assert ["w-sales" in locations[0], "w-hr" in locations[1]] == [True, True]

    tag = ours.send("GET", "v1/namespaces/db/tables/t")[1]["etag"]
    assert ours.send("GET", "v1/namespaces/db/tables/t", headers={"If-None-Match": tag})[0] == 304
    status, _, text = theirs.send("GET", "v1/namespaces/db/tables/t", headers={"If-None-Match": tag})
    assert (status, locations[0] in text) == (200, False)

    stolen = {"name": "stolen", "schema": SCHEMA, "location": locations[0]}
    assert theirs.send("POST", "v1/namespaces/db/tables", stolen)[0] == 403
    for where in (str(Path(locations[0].removeprefix("file://")).parent), locations[0]):
        catalog = {"name": "stolen", "type": "INTERNAL", "properties": {"default-base-location": where}}
        storage = {"storageType": "FILE", "allowedLocations": [where]}
        body = {"catalog": {**catalog, "storageConfigInfo": storage}}
        assert theirs.send("POST", "api/management/v1/catalogs", body)[0] == 403
        orphans = {"arguments": {"location": where}, "wait-seconds": PATIENCE}
        assert theirs.send("POST", "polaris-spark/v1/procedures/remove_orphans", orphans)[0] == 403
    register = {"name": "stolen", "metadata-location": f"{locations[0]}/metadata/v1.metadata.json"}
    assert theirs.send("POST", "v1/namespaces/db/register", register)[0] == 403


def test_runs_and_feeds_show_nothing_of_another_realm(world: World) -> None:
    ours, theirs = world.tenant("sales").log_in("root"), world.tenant("hr").log_in("root")
    asked = {"id": "the-run", "wait-seconds": PATIENCE}
    run = ours.ok("POST", "polaris-spark/v1/procedures/fsck", asked)
    assert run["id"] == "the-run"
    assert theirs.send("GET", "polaris-spark/v1/runs/the-run")[0] == 404
    assert theirs.send("DELETE", "polaris-spark/v1/runs/the-run")[0] == 404
    assert theirs.ok("GET", "polaris-spark/v1/runs")["runs"] == []
    connection = world.connection()
    try:
        instance = connection.realms.active("sales").instance
        with Tasks(connection.backend, connection.clock).running("fsck", instance):  # delays no other realm
            check = {"arguments": {"only": "sales"}, "wait-seconds": PATIENCE}
            status, _, text = theirs.send("POST", "polaris-spark/v1/procedures/fsck", check)
            assert status == 403, text
    finally:
        connection.close()
    catalogs = theirs.ok("GET", "api/management/v1/catalogs")["catalogs"]
    assert [one["name"] for one in catalogs] == ["polaris"]

    mine = ours.ok("GET", "polaris-spark/v1/changes", query={"after": "oldest"})
    status, _, text = theirs.send("GET", "polaris-spark/v1/changes", query={"after": mine["next"]})
    assert status == 409
    assert "of_sales" not in text
    position = theirs.ok("GET", "polaris-spark/v1/changes")["next"]
    ours.ok("POST", "v1/namespaces", {"namespace": ["of_sales_only"]})
    after = theirs.ok("GET", "polaris-spark/v1/changes", query={"after": position, "wait": "200 ms"})
    assert after["changes"] == []
    status, _, text = theirs.send("POST", "polaris-spark/v1/views/realms/plan", {})
    assert (status, "sales" in text) == (403, False)


def test_metrics_of_a_realm_are_for_the_realm(world: World) -> None:
    tenant = world.tenant("sales").log_in("root")
    tenant.names()
    world.tenant("invented").send("GET", "v1/config")
    status, _, text = tenant.send("GET", "metrics", headers={"Host": "sales.catalog.test"})
    assert status == 200
    assert 'polaris_spark_realm_requests_total{realm="sales",status="2xx"}' in text
    assert "hr" not in text
    assert "polaris_spark_http" not in text
    everything = Remote(world.server.uri).raw("GET", "/metrics")[2]
    assert 'realm="hr"' in everything
    assert "invented" not in everything
    assert world.tenant("hr", tenant.token).send("GET", "metrics", headers={"Host": "x.test"})[0] == 401


def test_a_realm_that_is_deactivated_answers_like_an_unknown_one(world: World) -> None:
    tenant, unknown = world.tenant("plain", STATIC["plain"]), world.tenant("unknown", STATIC["plain"])
    assert tenant.send("GET", "v1/namespaces")[0] == 200
    world.move("plain", RealmState.INACTIVE)
    try:
        wait_until(lambda: tenant.send("GET", "v1/namespaces")[0] == 401, "the change holds")
        assert described(tenant.send("GET", "v1/namespaces")) == described(
            unknown.send("GET", "v1/namespaces")
        )
    finally:
        world.move("plain", RealmState.ACTIVE)
    wait_until(lambda: tenant.send("GET", "v1/namespaces")[0] == 200, "the realm serves again")


def test_a_deactivated_realm_with_principals_answers_like_an_unknown_one(world: World) -> None:
    token = world.tenant("hr").log_in().token
    assert token is not None
    tenant, unknown = world.tenant("hr", token), world.tenant("unknown", token)
    world.move("hr", RealmState.INACTIVE)
    try:
        for send in (
            lambda one: one.send("GET", "openapi.json"),
            lambda one: one.send("GET", "v1/none"),
            lambda one: one.send("POST", "v1/namespaces", {"namespace": ["late"]}),
            lambda one: one.ask(credentials_form("ann")),
            lambda one: one.ask(exchange_form(token)),
        ):
            wait_until(
                lambda send=send: described(send(tenant)) == described(send(unknown)), "the change holds"
            )
    finally:
        world.move("hr", RealmState.ACTIVE)
    wait_until(lambda: tenant.send("GET", "openapi.json")[0] == 200, "the realm serves again")
    assert "late" not in tenant.names()


def test_failed_logins_limit_one_realm_only(tmp_path: Path) -> None:
    store, _, _ = new_store(tmp_path)
    options = ["--realms", "sales,hr,empty", "--realm", "hr", "--token-key", "env:KEY"]
    with Server(store, *options, "--max-failures-per-address", "3", env={"KEY": KEY}) as server:
        by_realm = {
            realm: [Tenant(server.uri, realm, "wrong").send("GET", "v1/config")[0] for _ in range(5)]
            for realm in ("sales", "empty", "plain", "invented")
        }
        assert set(map(tuple, by_realm.values())) == {(401, 401, 401, 429, 429)}
        hr = Tenant(server.uri, "", by="nothing").log_in()  # the default realm
        hr.by = "nothing"
        assert hr.send("GET", "v1/config")[0] == 200
        assert Tenant(server.uri, "plain", by="header").ask(credentials_form("ann"))[0] in (401, 429)
        assert Remote(server.uri).raw("GET", "/healthz")[0] == 200


def test_a_client_that_invents_names_of_realms_does_not_avoid_the_limit(tmp_path: Path) -> None:
    store, _, _ = new_store(tmp_path)
    options = ["--realms", "all", "--token-key", "env:KEY", "--max-failures-per-address", "2"]
    with Server(store, *options, env={"KEY": KEY}) as server:
        begun = time.monotonic()
        names = [f"invented-{number}" for number in range(60)]
        statuses = [Tenant(server.uri, name, "wrong").send("GET", "v1/config")[0] for name in names]
        regained = (time.monotonic() - begun) / 3 + 1  # 20 failures a minute are allowed in all realms
        assert set(statuses) == {401, 429}
        assert statuses.count(401) <= 20 + regained


def test_without_tokens_only_realms_without_access_control_are_served(tmp_path: Path) -> None:
    store, _, _ = new_store(tmp_path)
    with Server(store, "--realms", "all", "--insecure") as server:
        assert Tenant(server.uri, "plain").names() == []
        answers = [Tenant(server.uri, one).send("GET", "v1/config") for one in ("sales", "none", "empty")]
        assert {described(one)[0] for one in answers} == {404}
        assert len({one[2] for one in answers}) == 1


def test_options_that_many_realms_could_share_are_refused(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 'store.db'}"
    polaris_spark.connect(store=store, warehouse=str(tmp_path / "w")).close()
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("ann:secret-secret\n")
    complaints = {
        "every realm needs its own tokens": ["--token", "env:TOKEN"],
        "must contain {realm}": ["--insecure", "--allow-location", str(tmp_path)],
        "has a token without a realm": ["--token-file", str(tokens)],
        "has its own warehouse": ["--insecure", "--warehouse", str(tmp_path)],
        "the property 'warehouse' is not allowed": [
            "--insecure",
            "--property",
            f"warehouse={tmp_path}",
        ],
        "there is no login": ["--insecure", "--property", "credential=env:TOKEN"],
        "is not one of the realms": ["--insecure", "--realm", "other"],
        "must be at least 1": ["--insecure", "--max-open-realms", "0"],
    }
    for complaint, given in complaints.items():
        realms = ["--realms", "default" if "one of" in complaint else "all"]
        answer = run("serve", store, "--port", "0", *realms, *given, TOKEN="t" * 20)
        assert (answer.code, complaint in answer.err) == (2, True), (given, answer)
