"""Catalogs are created, renamed, dropped and restored. Open sessions follow."""

from __future__ import annotations

import random

import pytest

from polaris_spark.catalog.catalogs.catalog_changes import unsettled
from polaris_spark.catalog.catalogs.references import CATALOGS, dropped_in
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CatalogNotEmptyError,
    ForbiddenError,
    InputError,
    NotFoundError,
    PolarisError,
)
from polaris_spark.jobs.registry import call
from tests.rest.client import Client, table_request, tables
from tests.rest.realms import Realm, namespaces


def test_a_created_catalog_is_listed_described_and_opened(realm: Realm) -> None:
    id = realm.create("a", **{"gc.enabled": "false"})
    (row,) = [one for one in call(realm.main, "show_catalogs") if one[0] == "a"]
    assert row == call(realm.main, "describe_catalog", name="a")[0]
    assert row[:4] == ("a", id, "active", f"file://{realm.folder}/a")
    opened = realm.open("a")
    assert opened.session.catalog_properties()["gc.enabled"] == "false"
    opened.namespace("db")
    assert namespaces(opened) == ["db"]


@pytest.mark.parametrize(
    ("name", "properties", "error"),
    [
        ("polaris", {"warehouse": "/tmp/x"}, AlreadyExistsError),
        ("a", {}, InputError),
        ("a", {"warehouse": "/tmp/x", "gc.enabled": "maybe"}, InputError),
        ("a", {"warehouse": "/tmp/x", "nosuch": "1"}, InputError),
        ("a", {"warehouse": "/tmp/x", "shared-locations": "maybe"}, InputError),
        ("a", {"warehouse": "{polaris}/below"}, ForbiddenError),
        ("", {"warehouse": "/tmp/x"}, BadRequestError),
        ("a\nb", {"warehouse": "/tmp/x"}, BadRequestError),
    ],
)
def test_a_catalog_that_cannot_be_created_is_refused(
    realm: Realm, name: str, properties: dict[str, str], error: type[PolarisError]
) -> None:
    given = {key: text.replace("{polaris}", f"{realm.folder}/polaris") for key, text in properties.items()}
    with pytest.raises(error):
        realm.main.catalogs.create(name, given)
    assert list(realm.names()) == ["polaris"]


def test_an_open_session_follows_a_rename(realm: Realm) -> None:
    id = realm.create("a")
    opened = realm.open("a")
    opened.namespace("before")
    realm.main.catalogs.rename("a", "b")
    opened.namespace("after")
    assert opened.session.set_catalog_properties({"gc.enabled": "false"})["gc.enabled"] == "false"
    assert realm.names().keys() == {"polaris", "b"}
    again = realm.open("b")
    assert namespaces(again) == ["after", "before"]
    assert again.session.catalog.row.entity_id == id
    assert again.session.catalog_properties()["gc.enabled"] == "false"
    with pytest.raises(NotFoundError, match="catalog 'a' does not exist"):
        realm.open("a")


def test_two_catalogs_exchange_their_names(realm: Realm) -> None:
    ids = {name: realm.create(name) for name in ("a", "b")}
    sessions = {name: realm.open(name) for name in ids}
    for name, opened in sessions.items():
        opened.namespace(f"of_{name}")
        opened.session.set_catalog_properties({"table-default.was": name})
    for name, to in (("a", "c"), ("b", "a"), ("c", "b")):
        realm.main.catalogs.rename(name, to)
    assert realm.names() == {"polaris": realm.main.catalog.row.entity_id, "a": ids["b"], "b": ids["a"]}
    assert {name: namespaces(opened) for name, opened in sessions.items()} == {"a": ["of_a"], "b": ["of_b"]}
    assert namespaces(realm.open("a")) == ["of_b"]
    assert sessions["a"].session.catalog_properties()["table-default.was"] == "a"
    with pytest.raises(AlreadyExistsError):
        realm.main.catalogs.rename("a", "b")
    assert call(realm.main, "fsck") == []


def test_a_catalog_that_is_created_again_is_another_one(realm: Realm) -> None:
    first = realm.create("a")
    old = realm.open("a")
    old.namespace("db")
    realm.main.catalogs.drop("a", cascade=True)
    second = realm.create("a")
    assert first != second
    assert namespaces(realm.open("a")) == []
    assert old.send("GET", "v1/namespaces").status == 404
    with pytest.raises(AlreadyExistsError):
        realm.main.catalogs.undrop("a", id=first)
    with pytest.raises(ForbiddenError, match="overlaps"):
        realm.main.catalogs.undrop("a", id=first, to="b")
    realm.main.catalogs.drop("a")
    with pytest.raises(NotFoundError):
        realm.main.catalogs.undrop("a", id=7)
    assert realm.main.catalogs.undrop("a").row.entity_id == second  # the one that was dropped last
    realm.main.catalogs.drop("a")
    assert realm.main.catalogs.undrop("a", id=first, to="b").row.name == "b"
    assert namespaces(realm.open("b")) == ["db"]


def test_tables_lie_in_the_allowed_locations_of_the_catalog(realm: Realm) -> None:
    allowed = realm.folder / "allowed"
    realm.create("a", **{"allowed-locations": f"{allowed}, s3://bucket/x"})
    opened = realm.open("a")
    opened.namespace("db")
    assert opened.send("POST", tables("db"), table_request("t")).status == 200
    inside = {**table_request("u"), "location": str(allowed / "u")}
    assert opened.send("POST", tables("db"), inside).status == 200
    outside = {**table_request("v"), "location": str(realm.folder / "elsewhere")}
    for body in (outside, {**outside, "stage-create": True}):
        answer = opened.send("POST", tables("db"), body)
        assert answer.status == 403
        assert "allowed-locations" in answer.error["message"]
    realm.open("a").session.set_catalog_properties(removals=["allowed-locations"])
    assert opened.send("POST", tables("db"), outside).status == 200  # the open session sees it
    with pytest.raises(InputError, match="allowed-locations"):
        opened.session.set_catalog_properties({"allowed-locations": "relative/x"})


def test_a_warehouse_of_a_session_does_not_extend_the_allowed_locations(realm: Realm) -> None:
    realm.create("a", **{"allowed-locations": f"{realm.folder}/a"})
    opened = realm.open("a", warehouse=realm.folder / "own")
    opened.namespace("db")
    assert opened.send("POST", tables("db"), table_request("t")).status == 403


def test_an_override_of_the_catalog_wins_over_that_of_a_session(realm: Realm) -> None:
    realm.create("a", **{"table-override.x": "catalog"})
    opened = realm.open("a", **{"table-override.x": "session", "table-override.y": "session"})
    opened.namespace("db")
    made = opened.ok("POST", tables("db"), table_request("t"))["metadata"]["properties"]
    assert (made["x"], made["y"]) == ("catalog", "session")


SEEDS = range(6)
NAMES = ("a", "b", "c")


class Model:
    """What the realm must contain: catalogs by id, with their namespaces by branch."""

    def __init__(self) -> None:
        self.live: dict[str, int] = {}
        self.dropped: list[tuple[str, int]] = []
        self.content: dict[int, dict[str, set[str]]] = {}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_changes_by_two_processes_agree_with_a_model(realm: Realm, seed: int) -> None:
    choose, model = random.Random(f"catalogs {seed}"), Model()
    print("seed", seed)
    processes = [realm.main.catalogs, realm.open("polaris").session.catalogs]
    clients: dict[int, Client] = {}
    folders = iter(range(1_000))
    for step in range(60):
        catalogs, name, to = choose.choice(processes), choose.choice(NAMES), choose.choice(NAMES)
        action = choose.choice(("create", "create", "rename", "drop", "undrop", "namespace", "branch"))
        id = model.live.get(name)
        if action == "create":
            if id is not None:
                with pytest.raises(AlreadyExistsError):
                    catalogs.create(name, {"warehouse": f"/nowhere/{next(folders)}"})
            else:
                made = catalogs.create(name, {"warehouse": str(realm.folder / f"w{next(folders)}")})
                model.live[name] = made.row.entity_id
                model.content[made.row.entity_id] = {"main": set()}
                clients[made.row.entity_id] = realm.open(name)
        elif action == "rename":
            if id is None:
                with pytest.raises(NotFoundError):
                    catalogs.rename(name, to)
            elif to in model.live and to != name:
                with pytest.raises(AlreadyExistsError):
                    catalogs.rename(name, to)
            else:
                assert catalogs.rename(name, to).row.entity_id == id
                del model.live[name]
                model.live[to] = id
        elif action == "drop":
            cascade = choose.random() < 0.7
            if id is None:
                with pytest.raises(NotFoundError):
                    catalogs.drop(name, cascade=cascade)
            elif not cascade and any(model.content[id].values()):
                with pytest.raises(CatalogNotEmptyError):
                    catalogs.drop(name)
            else:
                catalogs.drop(name, cascade=cascade)
                model.dropped.append((name, model.live.pop(name)))
        elif action == "undrop" and model.dropped:
            old, gone = choose.choice(model.dropped)
            if to in model.live:
                with pytest.raises(AlreadyExistsError):
                    catalogs.undrop(old, id=gone, to=to)
            else:
                assert catalogs.undrop(old, id=gone, to=to).row.entity_id == gone
                model.dropped.remove((old, gone))
                model.live[to] = gone
        elif action == "namespace" and model.content:
            chosen = choose.choice([*model.content])
            answer = clients[chosen].send("POST", "v1/namespaces", {"namespace": [f"n{step}"]})
            assert (answer.status == 200) == (chosen in model.live.values())
            if answer.status == 200:
                model.content[chosen]["main"].add(f"n{step}")
        elif action == "branch" and id is not None:
            call(clients[id].session, "create_branch", name=f"b{step}")
            model.content[id][f"b{step}"] = set(model.content[id]["main"])
        assert realm.names() == {**model.live, "polaris": realm.main.catalog.row.entity_id}
        there = {(one.row.name, one.row.entity_id) for one in catalogs.dropped()}
        assert there == set(model.dropped)
        for one, client in clients.items():
            is_live = one in model.live.values()
            answer = client.send("GET", "v1/namespaces")
            assert (answer.status == 200) == is_live
            if is_live:
                assert set(namespaces(client)) == model.content[one]["main"]
    for name, id in model.live.items():
        for branch, content in model.content[id].items():
            opened = realm.open(name, branch=branch)
            assert set(namespaces(opened)) == content
    references = realm.main.catalog.references
    assert unsettled(references) == []
    assert call(realm.main, "fsck") == []
    call(realm.main, "sweep")
    assert call(realm.main, "fsck") == []
    assert not dropped_in(references.read(CATALOGS), ended=True)
