"""The system view `branches`, with branches and tags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polaris_spark.errors import InputError, NotFoundError
from polaris_spark.jobs.branches import SHOW
from polaris_spark.jobs.catalogs import SHOW as SHOW_CATALOGS
from polaris_spark.jobs.registry import call
from tests.views.catalogs import Catalog, rows


def test_branches_are_shown_with_their_distance_from_main(tmp_path: Path) -> None:
    main = Catalog(tmp_path / "c.db")
    other = Catalog(tmp_path / "c.db", store=main.store, catalog="other")
    main.namespace("db")
    for name in ("dev", "old", "gone"):
        call(main.session, "create_branch", name=name)
    call(main.session, "drop_branch", name="gone")
    dev = Catalog(tmp_path / "c.db", store=main.store, branch="dev")
    for name in ("a", "b", "c"):
        dev.namespace(name)
    main.namespace("later")
    call(main.session, "protect_branch", name="old")
    call(main.session, "create_tag", name="v1", source="dev", at="1", comment="for the report")
    found = {(row["catalog"], row["name"]): row for row in rows("branches", store=main.store)}
    parted = {name: (row["ahead"], row["behind"]) for name, row in found.items()}
    assert parted == {
        ("other", "main"): (0, 0),
        ("polaris", "main"): (0, 0),
        ("polaris", "dev"): (3, 1),
        ("polaris", "old"): (1, 1),
        ("polaris", "v1"): (0, 1),
    }
    shown = {row[0]: row[1:] for row in call(main.session, "show_branches")}
    columns = [column.name for column in SHOW.columns if column.name not in ("branch", "commit_number")]
    for name, (number, *others) in shown.items():
        row = found["polaris", name]
        assert (row["kind"], row["number"]) == ("branch", number)
        assert [row[column] for column in columns] == others
    assert [name for (_, name), row in found.items() if row["protected"]] == ["old"]
    tag = found["polaris", "v1"]
    described = (tag["kind"], tag["number"], tag["comment"], tag["source"], tag["owner"])
    assert described == ("tag", 1, "for the report", "dev#1", main.session.principal)
    assert len(rows("branches", store=main.store, catalog="other")) == 1
    with pytest.raises(NotFoundError, match="catalog 'nosuch' does not exist"):
        rows("branches", store=main.store, catalog="nosuch")
    with pytest.raises(InputError, match="view 'branches' does not support the option as-of"):
        rows("branches", store=main.store, catalog="other", as_of="0")
    for one in (main, other, dev):
        one.session.close()


def test_catalogs_are_shown_with_dropped_ones_and_views_follow_a_rename(tmp_path: Path) -> None:
    main = Catalog(tmp_path / "c.db")
    main.namespace("db")
    session = main.session
    for name in ("a", "gone"):
        session.catalogs.create(name, {"warehouse": str(tmp_path / name), "gc.enabled": "false"})
    session.catalogs.drop("gone")
    found = {row["catalog"]: row for row in rows("catalogs", store=main.store)}
    assert {name: row["state"] for name, row in found.items()} == {
        "a": "active",
        "polaris": "active",
        "gone": "dropped",
    }
    for shown in call(session, "show_catalogs", dropped=True):
        row = found[shown[0]]
        names = [column.name for column in SHOW_CATALOGS.columns[:-1]]
        assert [row[name] for name in names] == list(shown[:-1])
    assert dict(found["gone"]["properties"])["gc.enabled"] == "false"
    session.catalogs.rename("polaris", "renamed")
    session.catalogs.rename("a", "polaris")
    options = {"store": main.store, "catalog": "polaris"}
    count = json.loads(
        session.request(
            "POST", "polaris-spark/v1/views/namespaces/count", None, json.dumps({"options": options})
        )[2]
    )
    assert count["count"] == 1  # those of the renamed catalog, not of the one that has its name
    session.catalogs.drop("renamed", cascade=True)
    status, _, _ = session.request(
        "POST", "polaris-spark/v1/views/namespaces/count", None, json.dumps({"options": options})
    )
    assert status == 404
    session.close()


def test_changes_say_their_branch_what_was_merged_and_what_a_transaction_changed(tmp_path: Path) -> None:
    main = Catalog(tmp_path / "c.db")
    main.namespace("db")
    call(main.session, "create_branch", name="dev")
    dev = Catalog(tmp_path / "c.db", store=main.store, branch="dev")
    dev.namespace("of_dev")
    head = dev.head()
    call(main.session, "merge", source="dev")
    with main.session.transaction() as session:
        for name in ("one", "two"):
            session.request("POST", "v1/namespaces", body=f'{{"namespace": ["{name}"]}}')
    found = [row for row in rows("changes", store=main.store) if row["action"] == "create-namespace"]
    assert {(row["branch"], row["name"]) for row in found if row["number"] < 2} == {
        ("main", "db"),
        ("dev", "db"),
    }
    [merged] = [row for row in found if row["branch"] == "main" and row["name"] == "of_dev"]
    assert (merged["merged_ids"], merged["summary"]["from"]) == ([head], "merge dev")
    together = [row for row in found if row["summary"].get("from") == "transaction"]
    assert {row["name"] for row in together} == {"one", "two"}
    assert len({row["commit_id"] for row in together}) == 1
    of_root = [row for row in rows("changes", store=main.store) if row["reference"] == "root"]
    assert {row["branch"] for row in of_root} == {None}
    for one in (main, dev):
        one.session.close()
