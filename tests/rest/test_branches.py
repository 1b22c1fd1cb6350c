"""Branches of a catalog, and catalogs that show an earlier state."""

from __future__ import annotations

import pytest

from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    BeforeHistoryError,
    ForbiddenError,
    InputError,
    NotFoundError,
)
from polaris_spark.jobs.registry import call
from tests.rest.client import Client, table, tables
from tests.rest.conftest import OpenBranch


def names(client: Client) -> list[str]:
    """The namespaces at the root of a catalog."""
    return [one[0] for one in client.ok("GET", "v1/namespaces")["namespaces"]]


def number(client: Client) -> int:
    """The number of the newest commit."""
    return client.session.catalog.head().head.number


def test_a_catalog_as_of_a_commit_shows_dropped_tables_and_cannot_be_changed(open_branch: OpenBranch) -> None:
    now = open_branch()
    now.namespace("db")
    now.create("t")
    commit = now.session.catalog.head().head
    now.ok("DELETE", table("t"))
    now.namespace("later")
    for point in (str(commit.number), str(commit.commit), f"{commit.commit:x}", str(commit.time)):
        then = open_branch(as_of=point)
        assert names(then) == ["db"]
        assert [one["name"] for one in then.ok("GET", tables("db"))["identifiers"]] == ["t"]
        assert then.send("GET", table("t")).status == 200, point
    refused = then.send("POST", "v1/namespaces", {"namespace": ["x"]})
    assert refused.kind == (403, "ForbiddenException")
    assert f"commit number {commit.number}" in str(refused)
    for query in ("true", "false"):
        dropped = then.send("DELETE", table("t"), query={"purgeRequested": query})
        assert dropped.kind == (403, "ForbiddenException")
    with pytest.raises(ForbiddenError):
        then.session.set_catalog_properties({"gc.enabled": "false"})
    assert names(now) == ["db", "later"]


def test_jobs_do_not_run_on_a_state_of_the_past(open_branch: OpenBranch) -> None:
    now = open_branch()
    now.namespace("db")
    then = open_branch(as_of="1")
    for job in ("sweep", "trim", "expire", "remove_orphans", "purge_dropped", "create_branch"):
        with pytest.raises(ForbiddenError, match="cannot be changed"):
            call(then.session, job, **({"name": "b"} if job == "create_branch" else {}))
    assert call(then.session, "show_materialized_views") == []


@pytest.mark.parametrize(
    ("point", "error", "why"),
    [
        ("99", InputError, "is not a commit of this history"),
        ("yesterday", InputError, "must be a commit number"),
        ("2026-01-01T00:00:00", InputError, "without a zone"),
        ("2001-01-01T00:00:00Z", BeforeHistoryError, "begins at"),
    ],
)
def test_points_that_are_not_in_the_history_are_refused(
    open_branch: OpenBranch, point: str, error: type[Exception], why: str
) -> None:
    open_branch()
    with pytest.raises(error, match=why):
        open_branch(as_of=point)


def test_a_branch_begins_with_the_state_of_another_and_goes_its_own_way(open_branch: OpenBranch) -> None:
    main = open_branch()
    for name in "ab":
        main.namespace(name)
    old = number(main)
    main.namespace("c")
    (made,) = call(main.session, "create_branch", name="dev")
    assert (made[0], made[1], made[-1]) == ("dev", number(main) + 1, True)
    call(main.session, "create_branch", name="old", at=str(old))
    dev = open_branch(branch="dev")
    call(dev.session, "create_branch", name="of dev")
    dev.namespace("x")
    main.namespace("y")
    main.namespace("z")
    seen = {branch: names(open_branch(branch=branch)) for branch in ("main", "dev", "old", "of dev")}
    assert seen == {
        "main": ["a", "b", "c", "y", "z"],
        "dev": ["a", "b", "c", "x"],
        "old": ["a", "b"],
        "of dev": ["a", "b", "c"],
    }
    parted = {row[0]: row[4:6] for row in call(main.session, "show_branches")}
    assert parted == {"main": (0, 0), "dev": (1, 2), "old": (0, 3), "of dev": (0, 2)}


def test_a_dropped_branch_can_be_restored(open_branch: OpenBranch) -> None:
    main = open_branch()
    call(main.session, "create_branch", name="dev")
    dev = open_branch(branch="dev")
    dev.namespace("x")
    assert call(main.session, "drop_branch", name="dev") == [("dev", True)]
    gone = dev.send("GET", "v1/namespaces")
    assert (gone.status, "no branch 'dev'" in str(gone)) == (404, True)
    with pytest.raises(NotFoundError, match="its branches are: 'main'"):
        call(main.session, "drop_branch", name="dev")
    assert call(main.session, "drop_branch", name="dev", if_exists=True) == [("dev", False)]
    call(main.session, "undrop_branch", name="dev")
    assert names(dev) == ["x"]
    with pytest.raises(NotFoundError, match="no dropped branch 'dev'"):
        call(main.session, "undrop_branch", name="dev")


def test_branches_with_bad_names_or_sources_are_refused(open_branch: OpenBranch) -> None:
    main = open_branch()
    call(main.session, "create_branch", name="dev")
    with pytest.raises(AlreadyExistsError, match="already has a branch 'dev'"):
        call(main.session, "create_branch", name="dev")
    assert call(main.session, "create_branch", name="dev", if_not_exists=True)[0][-1] is False
    for name in ("", "a@b", "a#b", "..", "a\nb"):
        with pytest.raises(BadRequestError, match="the name of a branch"):
            call(main.session, "create_branch", name=name)
    with pytest.raises(NotFoundError, match="no branch 'nowhere'"):
        call(main.session, "create_branch", name="b", source="nowhere")
    with pytest.raises(InputError, match="at '77' is not a commit"):
        call(main.session, "create_branch", name="b", at="77")
    with pytest.raises(BadRequestError, match="'main' of catalog 'polaris' cannot be dropped"):
        call(main.session, "drop_branch", name="main")
    assert [row[0] for row in call(main.session, "show_branches")] == ["dev", "main"]
