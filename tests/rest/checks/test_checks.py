"""Checks that must pass before a merge into a protected branch, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.catalog.branches.checks import MAX_CHECKS, MAX_SQL_BYTES, Check, checks_of
from polaris_spark.catalog.merges.checked_merge import MergedState
from polaris_spark.catalog.merges.merges import Options, cherry_pick, revert
from polaris_spark.catalog.merges.staging import commit_staged
from polaris_spark.commits.log import entries
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CheckFailedError,
    MergeConflictError,
    NotFoundError,
)
from polaris_spark.jobs.registry import call
from tests.rest.appends import attempt, new_append, send, write_manifests
from tests.rest.checks.evaluators import ME, TRUE, Evaluator, merge, newest, number
from tests.rest.client import Client, table
from tests.rest.conftest import OpenBranch


def test_checks_are_added_shown_and_dropped(main: Client) -> None:
    assert call(main.session, "add_check", branch="main", name="it's", sql=" SELECT 1=1 ; ") == [
        ("main", "it's", "SELECT 1=1")
    ]
    call(main.session, "add_check", branch="main", name="a", sql="WITH x AS (SELECT 1) SELECT true FROM x")
    shown = call(main.session, "show_checks")
    assert shown == call(main.session, "show_checks", branch="main")
    assert [row[:3] for row in shown] == [("main", "a", "sql"), ("main", "it's", "sql")]
    assert call(main.session, "show_checks", branch="dev") == []
    assert call(main.session, "drop_check", branch="main", name="a") == [("main", "a", True)]
    assert call(main.session, "drop_check", branch="main", name="a", if_exists=True) == [("main", "a", False)]
    with pytest.raises(NotFoundError, match="branch 'main' has no check 'a'; its checks are: \"it's\""):
        call(main.session, "drop_check", branch="main", name="a")
    assert checks_of(main.session.catalog, "main") == [Check("it's", "SELECT 1=1")]


def test_the_log_has_the_principals_who_add_and_drop_a_check(main: Client) -> None:
    call(main.session, "add_check", branch="main", name="x", sql=TRUE)
    before = newest(main)
    call(main.session, "add_check", branch="main", name="x", sql=f"{TRUE};")
    assert newest(main) == before  # the same check: nothing to do
    call(main.session, "drop_check", branch="main", name="x")
    store, head = main.session.catalog.references.store, main.session.catalog.head().head
    logged = [entry for *_, entry in entries(store, head) if entry.action.endswith("-check")]
    assert [entry.action for entry in logged] == ["drop-check", "add-check"]
    assert {entry.principal for entry in logged} == {main.session.principal}
    assert all(entry.summary == {"check": "x", "sql": TRUE} for entry in logged)


@pytest.mark.parametrize(
    ("name", "sql", "said"),
    [
        ("", TRUE, "'' cannot be the name of a check: the name is empty"),
        ("a\nb", TRUE, "control character"),
        ("x" * 201, TRUE, "longer than 200 bytes"),
        ("x", "", "must begin with SELECT"),
        ("x", " -- nothing", "must begin with SELECT"),
        ("x", "SELECT true; SELECT true", "several statements"),
        ("x", "SELECT true; DROP TABLE db.t;", "several statements"),
        ("x", "DROP TABLE db.t", "must begin with SELECT"),
        ("x", "SELECT 'a", "no closing quote"),
        ("x", "SELECT (true", "at line 1"),
        ("x", "SELECT true) FROM (SELECT 1", "at line 1"),
        ("x", f"SELECT '{'x' * MAX_SQL_BYTES}'", f"longer than {MAX_SQL_BYTES} bytes"),
    ],
)
def test_a_check_must_have_a_name_and_one_query(main: Client, name: str, sql: str, said: str) -> None:
    before = newest(main)
    with pytest.raises(BadRequestError, match=said):
        call(main.session, "add_check", branch="main", name=name, sql=sql)
    assert newest(main) == before


def test_a_check_is_not_replaced_and_their_number_is_limited(main: Client) -> None:
    with pytest.raises(NotFoundError, match="no branch 'nowhere'"):
        call(main.session, "add_check", branch="nowhere", name="x", sql=TRUE)
    for one in range(MAX_CHECKS):
        call(main.session, "add_check", branch="dev", name=str(one), sql=TRUE)
    with pytest.raises(AlreadyExistsError, match="already has a check '7' with other SQL text"):
        call(main.session, "add_check", branch="dev", name="7", sql="SELECT false")
    with pytest.raises(BadRequestError, match=f"already has {MAX_CHECKS} checks"):
        call(main.session, "add_check", branch="dev", name="more", sql=TRUE)


def test_checks_stay_with_their_branch_only(main: Client) -> None:
    call(main.session, "add_check", branch="main", name="of main", sql=TRUE)
    call(main.session, "add_check", branch="dev", name="of dev", sql=TRUE)
    call(main.session, "create_branch", name="other", source="main")
    assert checks_of(main.session.catalog, "other") == []
    call(main.session, "rename_branch", name="dev", to="trial")
    call(main.session, "drop_branch", name="trial")
    call(main.session, "undrop_branch", name="trial")
    call(main.session, "reassign_branch", name="trial", to="main")
    assert checks_of(main.session.catalog, "trial") == [Check("of dev", TRUE)]
    assert checks_of(main.session.catalog, "main") == [Check("of main", TRUE)]


def test_a_merge_needs_spark_only_if_the_branch_is_protected_and_has_checks(main: Client) -> None:
    call(main.session, "add_check", branch="dev", name="of dev", sql="SELECT false")
    assert [row[1] for row in call(main.session, "merge", source="dev")] == ["db.new"]
    call(main.session, "add_check", branch="main", name="rows", sql=TRUE)
    main.ok("POST", "v1/namespaces", {"namespace": ["more"]}, headers={"Polaris-State": "dev"})
    before = newest(main)
    with pytest.raises(CheckFailedError) as refused:
        call(main.session, "merge", source="dev")
    assert "Branch 'main' is protected; check 'rows' cannot be evaluated" in str(refused.value)
    assert "only Spark can evaluate: call the procedure in Spark SQL" in str(refused.value)
    assert newest(main) == before
    [_, row] = call(main.session, "merge", source="dev", dry_run=True)
    assert row[:3] == ("check", "rows", "not evaluated")
    call(main.session, "unprotect_branch", name="main")
    assert [row[1] for row in call(main.session, "merge", source="dev")] == ["more"]
    call(main.session, "protect_branch", name="main")
    for dry_run in (False, True):  # nothing changes, so no check needs to be evaluated
        assert call(main.session, "merge", source="dev", dry_run=dry_run) == []


def test_the_checks_see_the_merged_state_which_is_then_committed(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "unprotect_branch", name="main")
    dev = open_branch("dev")
    for client in (main, dev):
        made = attempt(client.load()["metadata"], new_append(3))
        write_manifests(made)
        assert send(client, made).status == 200
    call(main.session, "protect_branch", name="main")
    call(main.session, "add_check", branch="main", name="rows", sql=TRUE)
    snapshots: list[int] = []

    def evaluate(merged: MergedState) -> str:
        inside = Client(main.session.derive(catalog=merged.catalog))
        assert inside.names("db") == ["new", "t"]
        assert main.names("db") == ["t"]
        snapshots.append(inside.load()["metadata"]["current-snapshot-id"])
        assert inside.send("DELETE", table("t")).status == 403
        return ""

    merged = merge(main, Evaluator(evaluate))
    assert [(one.name, one.action) for one in merged] == [("db.new", "added"), ("db.t", "merged")]
    assert [main.load()["metadata"]["current-snapshot-id"]] == snapshots
    assert main.names("db") == ["new", "t"]


def test_a_check_that_does_not_hold_refuses_the_merge(main: Client) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "add_check", branch="main", name="b", sql=TRUE)
    before = newest(main)
    with pytest.raises(CheckFailedError, match="checks 'a', 'b' do not hold: no"):
        merge(main, Evaluator(lambda _: "no"))
    assert newest(main) == before
    rows = merge(main, Evaluator(lambda _: "no"), dry_run=True)
    assert [tuple(row) for row in rows[1:]] == [
        ("check", "a", "failed", "no"),
        ("check", "b", "failed", "no"),
    ]
    rows = merge(main, Evaluator(), dry_run=True)
    assert [row.action for row in rows] == ["added", "passed", "passed"]
    assert newest(main) == before


def test_a_merge_with_conflicts_evaluates_no_checks(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "unprotect_branch", name="main")
    main.create("new")
    call(main.session, "protect_branch", name="main")
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    evaluator = Evaluator()
    with pytest.raises(MergeConflictError):
        merge(main, evaluator)
    rows = merge(main, evaluator, dry_run=True)
    assert tuple(rows[-1]) == ("check", "a", "not evaluated", "there are conflicts")
    assert evaluator.seen == []


def test_a_bad_merge_into_a_protected_branch_is_reverted_if_the_checks_hold(main: Client) -> None:
    call(main.session, "merge", source="dev")
    bad = str(number(main))
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    with pytest.raises(CheckFailedError, match=f"revert {bad} is refused.* check 'a' cannot be evaluated"):
        call(main.session, "revert", commit=bad)
    catalog, evaluator = main.session.catalog, Evaluator(lambda _: "no")
    with pytest.raises(CheckFailedError, match=f"revert {bad} is refused.* check 'a' does not hold: no"):
        revert(catalog, bad, bad, ME, Options(evaluator=evaluator))
    rows = revert(catalog, bad, bad, ME, Options(evaluator=evaluator, dry_run=True))
    assert [(one.name, one.action) for one in rows] == [("db.new", "removed"), ("a", "failed")]
    assert main.names("db") == ["new", "t"]
    evaluator.evaluate = lambda _: ""
    revert(catalog, bad, bad, ME, Options(evaluator=evaluator))
    assert main.names("db") == ["t"]
    assert [Client(main.session.derive(catalog=one.catalog)).names("db") for one in evaluator.seen] == [
        ["t"]
    ] * 3
    assert evaluator.seen[-1].label == f"revert {bad}"
    again = str(number(main))
    assert merge(main, Evaluator()) == []  # a merge does not bring what was merged before
    revert(catalog, again, again, ME, Options(evaluator=Evaluator()))
    assert main.names("db") == ["new", "t"]


def test_a_cherry_pick_into_a_protected_branch_is_checked(main: Client, open_branch: OpenBranch) -> None:
    open_branch("dev").create("more")
    picked = f"dev#{number(open_branch('dev'))}"
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    catalog = main.session.catalog
    with pytest.raises(CheckFailedError, match=f"cherry-pick {picked} is refused.* does not hold: no"):
        cherry_pick(catalog, picked, ME, Options(evaluator=Evaluator(lambda _: "no")))
    assert main.names("db") == ["t"]
    cherry_pick(catalog, picked, ME, Options(evaluator=Evaluator()))
    assert main.names("db") == ["more", "t"]


def test_a_revert_in_a_transaction_is_refused_before_any_check(main: Client) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    evaluator = Evaluator()
    with (
        pytest.raises(BadRequestError, match="cannot be part of a transaction"),
        main.session.transaction() as inside,
    ):
        revert(inside.catalog, "2", "2", ME, Options(evaluator=evaluator))
    assert evaluator.seen == []


def test_a_merge_in_a_transaction_is_refused_before_any_check(main: Client) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    evaluator = Evaluator()
    with (
        pytest.raises(BadRequestError, match="cannot be part of a transaction"),
        main.session.transaction() as inside,
    ):
        merge(Client(inside), evaluator)
    assert evaluator.seen == []


def test_a_checked_merge_writes_metadata_files_that_are_read(open_branch: OpenBranch, main: Client) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    writing = open_branch(metadata_files="every-commit")
    merge(writing, Evaluator())
    location = writing.load("new")["metadata-location"]
    assert Path(location.removeprefix("file://")).exists()
    assert writing.names("db") == ["new", "t"]


def test_nothing_is_left_of_a_merged_state(main: Client) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    evaluator = Evaluator()
    merge(main, evaluator, dry_run=True)
    [seen] = evaluator.seen
    answer = main.send("GET", "v1/namespaces", headers={"Polaris-State": seen.state})
    assert answer.status == 404
    assert not any(one.startswith("@") for one in main.session.catalog.opened_branches)


def test_staged_changes_are_checked_before_they_are_committed(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "stage", name="nightly")
    open_branch("+nightly").create("staged")
    with pytest.raises(CheckFailedError, match="check 'a' cannot be evaluated"):
        call(main.session, "commit_staged", name="nightly")
    rows = commit_staged(main.session.catalog, "nightly", ME, Options(evaluator=Evaluator(), dry_run=True))
    assert [row.action for row in rows] == ["added", "passed"]
    assert main.names("db") == ["t"]
    commit_staged(main.session.catalog, "nightly", ME, Options(evaluator=Evaluator()))
    assert main.names("db") == ["staged", "t"]
    with pytest.raises(BadRequestError, match=r"'.nightly' is a staging area; add the check to the branch"):
        call(main.session, "add_check", branch="+nightly", name="a", sql=TRUE)
