"""`polaris-spark properties`."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.cli.log import told
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import entries
from tests.cli.catalogs import make_catalog, run
from tests.rest.client import connect


def test_properties_are_shown_set_and_removed(tmp_path: Path) -> None:
    store = make_catalog(tmp_path, grace="4 h")
    warehouse = {"warehouse": f"file://{tmp_path}/warehouse"}
    assert run("properties", store, "--json").json == {"grace": "4 h", **warehouse}
    options = ["--set", "gc.enabled=false", "--set", "metadata-files=never", "--unset", "grace"]
    changed = {"gc.enabled": "false", "metadata-files": "never", **warehouse}
    assert run("properties", store, "--catalog", "polaris", *options, "--json").json == changed
    lines = run("properties", store).out.splitlines()
    assert [line.split() for line in lines[1:3]] == [["gc.enabled", "false"], ["metadata-files", "never"]]
    session = connect(store, None).session
    head = session.catalog.head()
    newest = next(iter(entries(head.store, head.head)))[3]
    assert newest.summary == {"set gc.enabled": "false", "set metadata-files": "never", "unset": "grace"}
    session.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "gc.enabled=perhaps"], "it must be true or false"),
        (["--set", "gc.enabled"], "write NAME=VALUE"),
        (["--set", "gc-enabled=false"], "did you mean 'gc.enabled'"),
        (["--unset", "warehouse"], "fixed when the catalog is created"),
        (["--set", "grace=1 h", "--unset", "grace"], "both set and removed: grace"),
        (["--set", "grace=1 h", "--set", "grace=2 h"], "set more than once: grace"),
    ],
)
def test_an_invalid_property_is_reported_in_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    store = make_catalog(tmp_path)
    answer = run("properties", store, *options)
    assert answer.code == 2
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1
    assert set(run("properties", store, "--json").json) == {"warehouse"}


def test_a_catalog_of_several_is_named(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    connect(store, tmp_path / "other", catalog="other").session.close()
    assert "choose one" in run("properties", store).err
    assert (
        run("properties", store, "--catalog", "other", "--set", "grace=1 d", "--json").json["grace"] == "1 d"
    )
    assert "grace" not in run("properties", store, "--catalog", "polaris", "--json").json


def test_an_undropped_branch_has_the_present_properties(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    session = connect(store, None).session
    catalog, who = session.catalog, Operation(b"", "ann")
    name = head_name(catalog.row, "dev")
    catalog.references.create(name, who, source=catalog.head())
    catalog.references.drop(name, who)
    session.set_catalog_properties({"gc.enabled": "false"})
    assert run("undrop-reference", store, name).code == 0
    head = catalog.references.read(name)
    assert catalog.context.binding.of(head).retention == {"gc.enabled": "false"}
    session.close()


def test_the_log_shows_the_values_of_properties() -> None:
    summary = {"set gc.enabled": "true", "set table-default.x": "", "unset": "grace"}
    assert told(summary) == "set gc.enabled=true, set table-default.x=, unset=grace"
