"""Which strategies a merge offers for conflicts, and for which names it takes them."""

from __future__ import annotations

import pytest

from polaris_spark.errors import InputError
from tests.rest.client import Client, path, table, view_request
from tests.rest.merges.steps import Opened, conflict, merge, rename

BOTH = "choose the strategy 'ours' or 'theirs' for"


@pytest.mark.parametrize("strategy", ["fail", "ours", "theirs"])
def test_no_strategy_is_offered_for_a_table_without_a_namespace(
    main: Client, opened: Opened, strategy: str
) -> None:
    main.namespace("n")
    dev = opened("dev")
    dev.create("x", namespace=("n",))
    main.ok("DELETE", path("n"))
    said = conflict(main, "dev", strategy=strategy)
    assert said.endswith(
        "does not exist in the branch; no strategy can resolve this: change the branch first"
    )


def test_only_ours_is_offered_for_a_table_that_has_the_name_of_a_view(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    dev.create("same")
    main.ok("POST", "v1/namespaces/db/views", view_request("same"))
    for strategy in ("fail", "theirs"):
        said = conflict(main, "dev", "the branch has another view of this name", strategy=strategy)
        assert said.endswith(
            "; only the strategy 'ours' can resolve this: choose it, or change the branch first"
        )
    assert merge(main, "dev", strategy="ours") == {"db.same": "kept"}


def test_conflicts_are_named_if_different_strategies_resolve_them(main: Client, opened: Opened) -> None:
    main.namespace("n")
    dev = opened("dev")
    dev.create("x", namespace=("n",))
    dev.create("same")
    dev.set("t", **{"my.a": "1"})
    dev.ok("DELETE", table("u"))
    main.ok("DELETE", path("n"))
    main.ok("POST", "v1/namespaces/db/views", view_request("same"))
    for name in ("t", "u"):
        main.set(name, **{"my.a": "2"})
    said = conflict(main, "dev", "4 conflicts")
    for part in (
        f"{BOTH} db.t, db.u",
        "only the strategy 'ours' can resolve db.same: choose it, or change the branch first",
        "no strategy can resolve n.x: change the branch first",
    ):
        assert part in said
    main.namespace("n")
    said = conflict(main, "dev", strategies={"db.same": "ours"})
    assert said.endswith(f"; {BOTH} them")


@pytest.mark.parametrize("name", ["db.tt", "`db`.`t`", "`db.t`", "t", "db.", "", "none"])
def test_a_strategy_for_an_unknown_name_is_refused(main: Client, opened: Opened, name: str) -> None:
    dev = opened("dev")
    for client, value in ((dev, "1"), (main, "2")):
        client.set("t", **{"my.a": value})
    for dry_run in (False, True):
        with pytest.raises(InputError, match=r"'strategies' has the name .*, but neither the branch nor"):
            merge(main, "dev", strategy="theirs", strategies={name: "ours"}, dry_run=dry_run)
    assert merge(main, "dev", strategies={"db.t": "ours"}) == {"db.t": "kept"}


def test_a_strategy_may_name_what_only_one_state_has_or_nobody_changed(main: Client, opened: Opened) -> None:
    dev = opened("dev")
    dev.set("t", **{"my.a": "1"})
    dev.ok("DELETE", table("u"))
    rename(main, "w", "renamed")
    main.create("own")
    names = ["db", "db.t", "db.u", "db.w", "db.renamed", "db.own"]
    chosen = dict.fromkeys(names, "theirs")
    assert merge(main, "dev", strategies=chosen) == {"db.t": "changed", "db.u": "removed"}
    assert merge(main, "dev", strategies=chosen) == {}
