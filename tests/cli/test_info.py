"""`polaris-spark info`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from polaris_spark.commits.change import Operation
from tests.cli.catalogs import COMMITS, run
from tests.views.catalogs import Catalog


def test_it_shows_the_content_of_the_store(store: str) -> None:
    facts = run("info", store, "--json").json
    (realm,) = facts["realms"]
    assert (facts["format"], realm["name"], realm["state"]) == (1, "default", "ACTIVE")
    (catalog,) = realm["catalogs"]
    counts = {name: catalog[name] for name in ("name", "owner", "namespaces", "tables", "views", "branches")}
    assert counts == {
        "name": "polaris", "owner": "ada", "namespaces": 2, "tables": 2, "views": 1, "branches": ["main"]
    }  # fmt: skip  # a row of the table


def test_it_lists_every_reference_with_its_newest_commit(store: str) -> None:
    (realm,) = run("info", store, "--json").json["realms"]
    references = {row["name"]: row for row in realm["references"]}
    head = f"cat/{realm['catalogs'][0]['id']}/heads/main"
    assert set(references) == {"root", "catalogs", head}
    assert references[head]["commit"] == COMMITS
    assert references[head]["state"] == "live"


def test_sizes_are_those_of_the_rows(store: str) -> None:
    (realm,) = run("info", store, "--json").json["realms"]
    database = sqlite3.connect(store.removeprefix("sqlite://"))
    rows = database.execute(
        "SELECT count(*), sum(length(value)) FROM objects WHERE realm = ?", (realm["instance"],)
    ).fetchone()
    database.close()
    assert (realm["objects"], realm["bytes"]) == rows


def test_sizes_can_be_left_out(store: str) -> None:
    (realm,) = run("info", store, "--json", "--no-sizes").json["realms"]
    assert "bytes" not in realm


def test_a_released_lease_is_shown_as_released(store: str) -> None:
    (lease,) = run("info", store, "--json").json["node-leases"]
    assert lease["released"] is True


def test_people_get_tables(store: str) -> None:
    out = run("info", store).out
    assert "realm default: ACTIVE" in out
    assert "released" in out


def test_a_branch_has_its_whole_name_slashes_and_all(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.db")
    references = catalog.session.catalog.references
    main = catalog.session.catalog.reference
    name = main.removesuffix("main") + "feature/x"
    references.create(name, Operation(b"", "ann"), source=references.read(main))
    catalog.session.close()
    (realm,) = run("info", catalog.store.partition("?")[0], "--json").json["realms"]
    assert sorted(realm["catalogs"][0]["branches"]) == ["feature/x", "main"]
