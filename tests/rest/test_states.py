"""Requests that choose a state of a catalog: by a header, a prefix, or the name of a table."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from pyiceberg.catalog import load_catalog

import polaris_spark
from polaris_spark.commits.rows import Commit
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import ForbiddenError, InputError, NotFoundError
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog
from tests.rest.client import Answer, Client, table, table_request, tables, view, view_request
from tests.server.servers import Server


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Client]:
    """A catalog with the table `db.t`, and the branch `dev`, where the table has the property `branch`."""
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", str(tmp_path / "warehouse")
    with polaris_spark.connect(store=store, warehouse=warehouse) as session:
        client = Client(session)
        client.namespace("db")
        client.create("t", properties={"my.branch": "main"})
        call(session, "create_branch", name="dev")
        dev = {"Polaris-State": "dev"}
        update = {"action": "set-properties", "updates": {"my.branch": "dev"}}
        body = {"requirements": [], "updates": [update]}
        assert client.send("POST", table("t"), body, headers=dev).status == 200
        yield client


def branch_of(client: Client, path: str, **headers: str) -> str:
    """Load a table, and return its property `my.branch`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.send("GET", path, headers=named)
    assert answer.status == 200, answer
    return str(answer.body["metadata"]["properties"]["my.branch"])


def test_each_form_names_a_state(catalog: Client) -> None:
    path = table("t")
    number = catalog.session.catalog.head().head.number
    assert branch_of(catalog, path) == "main"
    assert branch_of(catalog, path, Polaris_State="dev") == "dev"
    assert branch_of(catalog, path, polaris_state="main") == "main"
    for prefix in ("polaris@dev", quote("polaris@dev", safe="")):
        assert branch_of(catalog, path.replace("v1/", f"v1/{prefix}/")) == "dev"
    for name, branch in (("t@dev", "dev"), ("t@main", "main"), (f"t@{number}", "main")):
        assert branch_of(catalog, table(name)) == branch
    assert branch_of(catalog, table(f"t@dev#{number}")) == "main"
    time = "2999-01-01T00:00:00Z"
    assert branch_of(catalog, table(f"t@dev#{time}")) == "dev"
    catalog.set("t", **{"my.branch": "changed"})
    assert branch_of(catalog, path, Polaris_State=str(number)) == "main"
    assert branch_of(catalog, path, Polaris_State=f"dev#{time}") == "dev"


def test_changes_go_to_the_branch_and_not_to_the_past(catalog: Client) -> None:
    update = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"my.x": "1"}}]}
    catalog.ok("POST", table("t@dev"), update)
    catalog.ok(
        "POST",
        f"v1/polaris@dev/{tables('db').removeprefix('v1/')}",
        {"name": "new", "schema": {"type": "struct", "fields": []}},
    )
    assert catalog.names("db") == ["t"]
    assert "my.x" not in catalog.load("t")["metadata"]["properties"]
    dev = catalog.send("GET", tables("db"), headers={"Polaris-State": "dev"}).body["identifiers"]
    assert [one["name"] for one in dev] == ["new", "t"]
    refused = catalog.send("POST", table(f"t@{catalog.session.catalog.head().head.number}"), update)
    assert refused.kind == (403, "ForbiddenException")
    assert "which cannot be changed" in str(refused)
    catalog.ok("DELETE", table("t@dev"))
    assert catalog.names("db") == ["t"]
    assert catalog.send("GET", table("t@dev")).status == 404


def test_a_table_or_view_with_this_name_takes_precedence(catalog: Client) -> None:
    catalog.create("t@later", properties={"my.branch": "itself"})
    catalog.ok("POST", "v1/namespaces/db/views", view_request("v@later"))
    call(catalog.session, "create_branch", name="later")
    assert branch_of(catalog, table("t@later")) == "itself"
    assert catalog.send("GET", view("v@later")).status == 200
    identifier = {"namespace": ["db"], "name": "t@later"}
    catalog.ok("POST", "v1/tables/rename", {"source": identifier, "destination": {**identifier, "name": "u"}})
    assert branch_of(catalog, table("u")) == "itself"


def names_of_dev(catalog: Client) -> list[str]:
    found = catalog.send("GET", tables("db"), headers={"Polaris-State": "dev"}).body["identifiers"]
    return [one["name"] for one in found]


def test_creations_and_renames_go_to_the_branch_that_the_name_says(catalog: Client) -> None:
    catalog.create("new@dev")
    catalog.ok("POST", "v1/namespaces/db/views", view_request("v@dev"))
    assert (catalog.names("db"), names_of_dev(catalog)) == (["t"], ["new", "t"])
    assert catalog.send("GET", view("v")).status == 404

    def rename(source: str, target: str, kind: str = "tables") -> Answer:
        ends = {"source": source, "destination": target}
        body = {end: {"namespace": ["db"], "name": name} for end, name in ends.items()}
        return catalog.send("POST", f"v1/{kind}/rename", body)

    assert rename("t@dev", "u@dev").status == 204
    assert rename("new@dev", "renamed").status == 204
    assert rename("v@dev", "w@dev", "views").status == 204
    assert (catalog.names("db"), names_of_dev(catalog)) == (["t"], ["renamed", "u"])
    moved = rename("t", "t@dev")
    assert moved.kind == (400, "BadRequestException")
    assert "must be in the same state, but they are in: dev, main" in str(moved)
    past = f"t@{catalog.session.catalog.head().head.number}"
    assert rename(past, "x").kind == (403, "ForbiddenException")
    assert (catalog.names("db"), names_of_dev(catalog)) == (["t"], ["renamed", "u"])


def test_a_transaction_changes_the_branch_that_its_names_say(catalog: Client) -> None:
    update = {"action": "set-properties", "updates": {"my.branch": "changed"}}

    def commit(*names: str) -> Answer:
        changes = [
            {"identifier": {"namespace": ["db"], "name": name}, "requirements": [], "updates": [update]}
            for name in names
        ]
        return catalog.send("POST", "v1/transactions/commit", {"table-changes": changes})

    catalog.create("u")
    catalog.create("u@dev")
    assert commit("t@dev", "u@dev").status == 204
    assert branch_of(catalog, table("t@dev")) == branch_of(catalog, table("u@dev")) == "changed"
    assert branch_of(catalog, table("t")) == "main"
    assert commit("t@dev", "u").kind == (400, "BadRequestException")
    assert branch_of(catalog, table("t")) == "main"


@pytest.mark.parametrize("named", ["t@dev", "t"])
def test_a_body_names_the_table_as_the_path_or_without_the_state(catalog: Client, named: str) -> None:
    update = {"action": "set-properties", "updates": {"my.mail": "a@b.org"}}
    body = {"identifier": {"namespace": ["db"], "name": named}, "requirements": [], "updates": [update]}
    changed = catalog.ok("POST", table("t@dev"), body)
    assert changed["metadata"]["properties"]["my.branch"] == "dev"
    assert changed["metadata"]["properties"]["my.mail"] == "a@b.org"
    assert "my.mail" not in catalog.load("t")["metadata"]["properties"]


def test_a_branch_that_another_process_drops_gives_one_error(catalog: Client, tmp_path: Path) -> None:
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", str(tmp_path / "warehouse")
    with polaris_spark.connect(store=store, warehouse=warehouse) as session:
        call(session, "drop_branch", name="dev")
    update = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"my.x": "1"}}]}
    dev = {"Polaris-State": "dev"}
    answers = [
        catalog.send("GET", table("t@dev")),
        catalog.send("POST", table("t@dev"), update),
        catalog.send("POST", table("t"), update, headers=dev),
        catalog.send("POST", tables("db"), table_request("new"), headers=dev),
        catalog.send("GET", "v1/polaris@dev/namespaces"),
    ]
    assert {answer.status for answer in answers} == {404}
    assert "no branch 'dev'; it was dropped or renamed" in str(answers[0])
    assert all("dev" in answer.error["message"] for answer in answers)


def test_states_that_do_not_exist_are_refused(catalog: Client) -> None:
    missing = catalog.send("GET", table("t@none"))
    assert missing.kind == (404, "NoSuchTableException")
    header = catalog.send("GET", table("t"), headers={"Polaris-State": "none"})
    assert header.kind == (404, "NotFoundException")
    assert "no branch 'none'" in str(header)
    for prefix in ("polaris@none", "other@dev", "polaris@"):
        assert catalog.send("GET", f"v1/{prefix}/namespaces").status == 404
    assert catalog.send("GET", "v1/config", query={"warehouse": "polaris@none"}).status == 404
    call(catalog.session, "drop_branch", name="dev")
    gone = catalog.send("GET", table("t"), headers={"Polaris-State": "dev"})
    assert gone.kind == (404, "NotFoundException")


def test_answers_without_changes_are_those_of_the_state(catalog: Client) -> None:
    def load(**headers: str) -> tuple[int, str]:
        answer = catalog.send("GET", table("t"), headers={k.replace("_", "-"): v for k, v in headers.items()})
        return answer.status, answer.headers.get("ETag", "")

    _, tag = load(Polaris_State="dev")
    assert load(Polaris_State="dev", If_None_Match=tag)[0] == 304
    assert load(If_None_Match=tag)[0] == 200
    update = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"my.x": "1"}}]}
    catalog.ok("POST", table("t@dev"), update)
    assert load(Polaris_State="dev", If_None_Match=tag)[0] == 200


def test_procedures_work_on_the_state(catalog: Client) -> None:
    body = {"arguments": {"from_state": "main", "to_state": "dev"}}
    path = "polaris-spark/v1/procedures/diff"
    assert len(catalog.ok("POST", path, body)["rows"]) == 1
    merged = catalog.send(
        "POST",
        "polaris-spark/v1/procedures/merge",
        {"arguments": {"source": "main"}},
        headers={"Polaris-State": "dev"},
    )
    assert merged.status == 200, merged
    assert branch_of(catalog, table("t")) == "main"


def test_pyiceberg_works_on_a_branch_by_configuration_alone(catalog: Client, tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path / 'store.db'}"
    with Server(store, "--insecure") as server:
        dev, main = (
            load_catalog("rest", type="rest", uri=server.uri, warehouse=name)
            for name in ("polaris@dev", "polaris")
        )
        assert dev.load_table("db.t").properties["my.branch"] == "dev"
        assert main.load_table("db.t").properties["my.branch"] == "main"
        dev.create_namespace("of_dev")
        assert main.list_namespaces() == [("db",)]
        with dev.load_table("db.t").transaction() as change:
            change.set_properties({"my.by": "pyiceberg"})
        with main.load_table("db.t@dev").transaction() as change:
            change.set_properties({"my.name": "t@dev"})
        assert dev.load_table("db.t").properties["my.name"] == "t@dev"
    assert "my.by" not in catalog.load("t")["metadata"]["properties"]


def test_pyiceberg_reads_a_tag_or_commit_by_configuration_alone(catalog: Client, tmp_path: Path) -> None:
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", str(tmp_path / "warehouse")
    number = catalog.session.catalog.head().head.number
    call(catalog.session, "create_tag", name="release")
    catalog.set("t", **{"my.branch": "later"})
    catalog.create("u")
    with Server(store, "--insecure") as server, contextlib.ExitStack() as opened:
        for state in ("release", str(number)):
            served = load_catalog("rest", type="rest", uri=server.uri, warehouse=f"polaris@{state}")
            embedded = opened.enter_context(
                PolarisCatalog("polaris", **{"store": store, "warehouse": warehouse, "as-of": state})
            )
            for then in (served, embedded):
                assert then.load_table("db.t").properties["my.branch"] == "main"
                assert then.list_tables("db") == [("db", "t")]
                with pytest.raises(Exception, match="cannot be changed"):
                    then.create_namespace("other")
    assert catalog.ok("GET", "v1/namespaces")["namespaces"] == [["db"]]


def test_the_header_names_a_branch_in_utf_8(catalog: Client, tmp_path: Path) -> None:
    call(catalog.session, "create_branch", name="日本")
    with Server(f"sqlite://{tmp_path / 'store.db'}", "--insecure") as server:
        connection = http.client.HTTPConnection(urlsplit(server.uri).netloc, timeout=60)
        connection.putrequest("GET", f"/{table('t')}")
        connection.putheader("Polaris-State", "日本".encode())
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, b"my.branch" in answer.read()) == (200, True)
        connection.close()


def test_an_error_says_how_to_name_the_state(catalog: Client) -> None:
    call(catalog.session, "create_tag", name="v1")

    def refused(state: str) -> str:
        return str(catalog.send("GET", table("t"), headers={"Polaris-State": state}).error["message"])

    assert "a time without a zone: add its zone, such as" in refused("2026-11-29T01:21:35")
    assert "'v1' is a tag, which is one commit; leave out '#1'" in refused("v1#1")
    for long in ("x" * 100_000, "1" * 100_000, f"main#{'x' * 100_000}", f"none#{'x' * 100_000}"):
        assert len(refused(long)) < 1_000
    for procedure, arguments, message in (
        ("merge", {"source": "v1"}, "'v1' is a tag: create a branch from it"),
        ("create_branch", {"name": "b", "source": "dev#2"}, "no branch 'dev#2'.*; give the commit in 'at'"),
    ):
        with pytest.raises(NotFoundError, match=message):
            call(catalog.session, procedure, **arguments)
    with pytest.raises(InputError, match=r"^to is ''"):
        call(catalog.session, "revert", commit="1", to="")


def test_a_session_that_shows_one_state_names_it_when_another_one_is_asked_for(
    catalog: Client, tmp_path: Path
) -> None:
    store = f"sqlite://{tmp_path / 'store.db'}"
    call(catalog.session, "create_tag", name="v1")
    with polaris_spark.connect(store=store, as_of="2") as then:
        for state in ("dev", "v1"):
            answer = Client(then).send("GET", table("t"), headers={"Polaris-State": state})
            shows = f"shows only catalog 'polaris' as of 2; open another session to read '{state}'"
            assert (answer.status, shows in str(answer)) == (403, True), answer
        with pytest.raises(ForbiddenError, match="which cannot be changed"):
            call(then, "merge", source="dev")
    with pytest.raises(
        InputError, match=r"2026-01-31T12:00:00Z.*, or the name of a tag or branch that exists"
    ):
        polaris_spark.connect(store=store, as_of="nope")
    with pytest.raises(InputError, match="a time without a zone"):
        polaris_spark.connect(store=store, as_of="2026-11-29T01:21:35")


def test_a_table_whose_state_was_trimmed_is_missing_with_the_reason(catalog: Client) -> None:
    committer = catalog.session.catalog.references.open(catalog.session.catalog.reference)
    newest = catalog.session.catalog.head()
    committer.amend(lambda head: raise_floor(head, newest.store.get(newest.head.commit, Commit)))
    for path, kind, what in ((table("t@1"), "Table", "t@1"), (view("v@1"), "View", "v@1")):
        answer = catalog.send("GET", path)
        assert answer.kind == (404, f"NoSuch{kind}Exception")
        reason = (
            f"{kind} does not exist: db.{what}; state '1' is before commit number {newest.head.number}, the"
        )
        assert reason in answer.error["message"]
    catalog.create("t@1")
    assert catalog.send("GET", table("t@1")).status == 200
