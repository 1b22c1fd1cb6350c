"""Merges of tables that were imported lazily: a branch that has only loaded a table has not changed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.catalog.imports.directory import DirectoryTree
from tests.catalog.imports.support import run, table_in
from tests.rest.client import Client, table
from tests.rest.merges.steps import Opened, conflict, merge, number, properties, revert


@pytest.fixture
def dev(main: Client, opened: Opened, tmp_path: Path) -> Client:
    """A branch that, like `main`, has the lazily imported table `db.lazy`."""
    root = tmp_path / "lake"
    root.mkdir()
    table_in(root, "db", "lazy")
    run(main, DirectoryTree(str(root), {}), lazy=True)
    return opened("dev")


def test_a_table_that_both_branches_have_loaded_is_not_changed(main: Client, dev: Client) -> None:
    main.load("lazy")
    dev.load("lazy")
    assert merge(main, "dev") == {}
    dev.set("lazy", **{"my.a": "1"})
    main.set("lazy", **{"my.b": "2"})
    assert merge(main, "dev") == {"db.lazy": "merged"}
    assert properties(main, "lazy") == {"my.a": "1", "my.b": "2"}


@pytest.mark.parametrize("loads", [False, True])
def test_changes_of_one_branch_are_taken_if_the_other_one_has_loaded_the_table(
    main: Client, dev: Client, loads: bool
) -> None:
    for client in (main, dev) if loads else ():
        client.load("lazy")
    dev.set("lazy", **{"my.a": "1"})
    assert merge(main, "dev") == {"db.lazy": "changed"}
    assert properties(main, "lazy") == {"my.a": "1"}
    main.load("lazy")
    dev.ok("DELETE", table("lazy"))
    assert merge(main, "dev") == {"db.lazy": "removed"}


def test_changes_of_both_branches_are_a_conflict_that_a_strategy_resolves(main: Client, dev: Client) -> None:
    main.set("lazy", **{"my.a": "1"})
    dev.set("lazy", **{"my.b": "2"})
    conflict(main, "dev", "its imported metadata was not loaded yet in an older state", "'ours' or 'theirs'")
    assert merge(main, "dev", strategy="theirs") == {"db.lazy": "replaced"}
    assert properties(main, "lazy") == {"my.b": "2"}


def test_reverting_the_load_of_a_table_changes_nothing(main: Client, dev: Client) -> None:
    main.load("lazy")
    assert revert(main, number(main)) == {}
