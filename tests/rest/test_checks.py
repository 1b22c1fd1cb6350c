"""Checks that must pass before a merge into a protected branch, without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.catalog.checked_merge import (
    TRIES,
    CheckOutcome,
    MergedState,
    ReadDifference,
    merge_checked,
)
from polaris_spark.catalog.checks import MAX_CHECKS, MAX_SQL_BYTES, Check, checks_of
from polaris_spark.catalog.entity_merge import Difference, Merged, Strategy
from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.catalog.merges import Options, cherry_pick, compare, merge_branch, revert
from polaris_spark.catalog.staging import commit_staged
from polaris_spark.catalog.state_merge import MergeStates, new_difference
from polaris_spark.catalog.states import reader_at
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import entries
from polaris_spark.commits.state import State
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CheckFailedError,
    CommitFailedError,
    MergeConflictError,
    NotFoundError,
)
from polaris_spark.jobs.registry import call
from tests.imports.support import run, table_in
from tests.rest.appends import appendable, attempt, new_append, send, write_manifests
from tests.rest.client import Client, at_once, table
from tests.rest.conftest import OpenBranch

ME = Operation(b"", "me")
TRUE = "SELECT true"


@pytest.fixture
def main(open_branch: OpenBranch) -> Client:
    """The protected branch `main` with the table `db.t`. The branch `dev` was created from it, and has the table
    `db.new`."""
    client = open_branch()
    client.namespace("db")
    appendable(client)
    call(client.session, "create_branch", name="dev")
    call(client.session, "protect_branch", name="main")
    open_branch("dev").create("new")
    return client


class Evaluator:
    """Evaluates checks by a function, and records the merged states."""

    has_own_checks = False

    def __init__(self, evaluate: Callable[[MergedState], str] = lambda _: "") -> None:
        self.evaluate = evaluate
        self.seen: list[MergedState] = []

    def outcomes(self, merged: MergedState) -> list[CheckOutcome]:
        self.seen.append(merged)
        return [CheckOutcome(check.name, self.evaluate(merged)) for check in merged.checks]

    def not_evaluated(self, checks: Sequence[Check], reason: str) -> list[CheckOutcome]:
        return [CheckOutcome(check.name, reason, evaluated=False) for check in checks]


def merge(client: Client, evaluator: Evaluator, source: str = "dev", **options: Any) -> list[Merged]:
    return merge_branch(client.session.catalog, source, ME, Options(evaluator=evaluator, **options))


def newest(client: Client) -> int:
    return client.session.catalog.head().head.commit


def python_check(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, name: str = "rule") -> None:
    """Install a package with a Python check."""
    installed = folder / f"{name}-0.1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text(f"[polaris_spark.checks]\n{name} = check_{name}:check\n")
    (folder / f"check_{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(folder))


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
        ("", TRUE, "the name of a check '' is empty"),
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
    for number in range(MAX_CHECKS):
        call(main.session, "add_check", branch="dev", name=str(number), sql=TRUE)
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
    assert "branch 'main' is protected; check 'rows' cannot be evaluated" in str(refused.value)
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


def test_a_merge_is_checked_again_if_the_target_moves(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "create_branch", name="other")
    open_branch("other").create("theirs")
    elsewhere = open_branch()

    def evaluate(merged: MergedState) -> str:
        if len(evaluator.seen) == 1:
            merge(elsewhere, Evaluator(), "other")
        return ""

    evaluator = Evaluator(evaluate)
    merge(main, evaluator)
    found = [Client(main.session.derive(catalog=one.catalog)).names("db") for one in evaluator.seen]
    assert found == [["new", "t"], ["new", "t", "theirs"]]
    assert main.names("db") == ["new", "t", "theirs"]


def test_a_merge_is_checked_again_if_the_source_moves(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    dev = open_branch("dev")

    def evaluate(merged: MergedState) -> str:
        if len(evaluator.seen) == 1:
            dev.create("bad")
        inside = Client(main.session.derive(catalog=merged.catalog))
        return "bad" if "bad" in inside.names("db") else ""

    evaluator = Evaluator(evaluate)
    with pytest.raises(CheckFailedError, match="bad"):
        merge(main, evaluator)
    assert main.names("db") == ["t"]


def test_a_check_that_is_added_meanwhile_is_evaluated(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    elsewhere = open_branch()

    def evaluate(merged: MergedState) -> str:
        call(elsewhere.session, "add_check", branch="main", name="b", sql=TRUE)
        return "b came" if len(merged.checks) == 2 else ""

    with pytest.raises(CheckFailedError, match="checks 'a', 'b' do not hold: b came"):
        merge(main, Evaluator(evaluate))
    assert main.names("db") == ["t"]


def merge_with(client: Client, evaluator: Evaluator, during: Callable[[int], object]) -> list[Merged]:
    """Merge `dev`, which began at commit 3.

    Args:
        during: called with the number of times that the difference of the branches was read, after the branch was.
    """
    catalog, numbers = client.session.catalog, count(1)
    base, theirs = (reader_at(catalog, one) for one in ("dev#3", "dev"))
    changes = {one.entity_id: one for one in compare(catalog, base, theirs)}

    def difference(_: State) -> Difference:
        during(next(numbers))
        return new_difference(catalog, changes)

    def make(read: ReadDifference) -> MergeStates:
        change = MergeStates(catalog.context, ME, read, label="merge dev")
        change.onto_protected = True
        return change

    return merge_checked(catalog, make, difference, "merge dev", evaluator)


def test_a_branch_that_is_protected_during_a_merge_has_its_checks_evaluated(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "unprotect_branch", name="main")
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    elsewhere, evaluator = open_branch(), Evaluator(lambda _: "no")

    def protect(number: int) -> None:
        if number == 1:
            call(elsewhere.session, "protect_branch", name="main")

    with pytest.raises(CheckFailedError, match="check 'a' does not hold: no"):
        merge_with(main, evaluator, protect)
    assert len(evaluator.seen) == 1
    assert main.names("db") == ["t"]


def test_a_commit_between_the_preparation_of_a_merge_and_its_commit_is_seen(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "create_branch", name="other")
    open_branch("other").create("theirs")
    elsewhere, evaluator = open_branch(), Evaluator()

    def change(number: int) -> None:
        if number == 2:  # the first one is for the checks
            merge(elsewhere, Evaluator(), "other")

    merge_with(main, evaluator, change)
    found = [Client(main.session.derive(catalog=one.catalog)).names("db") for one in evaluator.seen]
    assert found == [["new", "t"], ["new", "t", "theirs"]]
    assert main.names("db") == ["new", "t", "theirs"]


def test_a_merge_into_a_branch_that_keeps_changing_ends_with_an_error(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    dev = open_branch("dev")

    def evaluate(merged: MergedState) -> str:
        dev.create(f"t{len(evaluator.seen)}")
        return ""

    evaluator = Evaluator(evaluate)
    with pytest.raises(CommitFailedError, match=f"changed {TRIES} times while the checks"):
        merge(main, evaluator)
    assert len(evaluator.seen) == TRIES
    assert main.names("db") == ["t"]


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


def test_a_python_check_sees_the_diff_and_the_merged_catalog(
    main: Client, open_branch: OpenBranch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_branch("dev").ok("DELETE", table("t"))
    body = """
    import json

    def check(merged):
        status, _, body = merged.session.request("GET", "v1/namespaces/db/tables")
        assert status == 200
        names = [one["name"] for one in json.loads(body)["identifiers"]]
        changed = [(one.name, one.change) for one in merged.diff]
        raise ValueError(f"{merged.branch} {merged.label} {names} {changed}")
    """
    python_check(tmp_path / "site", monkeypatch, "\n".join(line[4:] for line in body.splitlines()))
    assert call(main.session, "show_checks")[0][1:] == ("rule", "python", "check_rule:check")
    said = r"check 'rule' does not hold: main merge dev \['new'\] \[\('db.new', 'added'\), \('db.t', 'removed'\)\]"
    with pytest.raises(CheckFailedError, match=said):
        call(main.session, "merge", source="dev")
    assert main.names("db") == ["t"]
    rows = call(main.session, "merge", source="dev", dry_run=True)
    assert rows[-1][:3] == ("check", "rule", "failed")
    call(main.session, "unprotect_branch", name="main")
    call(main.session, "merge", source="dev")
    assert main.names("db") == ["new"]


def test_a_python_check_that_closes_its_session_closes_no_other(
    main: Client, open_branch: OpenBranch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_branch("dev").create("made")
    python_check(
        tmp_path / "site", monkeypatch, "def check(merged):\n    with merged.session: pass", "closing"
    )
    call(main.session, "merge", source="dev")
    assert "made" in main.names("db")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def other(merged): pass", "has no attribute 'check'"),
        ("raise OSError('no rules here')", "no rules here"),
        ("def check(merged): raise ValueError", "ValueError"),
        ("def check(): pass", "takes 0 positional arguments"),
        (
            "def check(merged): merged.session.set_catalog_properties({'gc.enabled': 'false'})",
            "cannot be changed",
        ),
        (
            "def check(merged):\n"
            "    status, _, text = merged.session.request('DELETE', 'v1/namespaces/db/tables/t')\n"
            "    assert status == 200, text",
            "cannot be changed",
        ),
        (
            "def check(merged):\n"
            "    path, other = 'v1/namespaces/db/tables/new', {'Polaris-State': 'dev'}\n"
            "    status, _, text = merged.session.request('DELETE', path, headers=other)\n"
            "    assert status == 204, text",
            "cannot be changed",
        ),
    ],
)
def test_a_python_check_that_fails_in_any_way_refuses_the_merge(
    main: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    name = f"rule{abs(hash(body))}"
    python_check(tmp_path / "site", monkeypatch, body, name)
    with pytest.raises(CheckFailedError, match=said):
        call(main.session, "merge", source="dev")
    assert main.names("db") == ["t"]


def test_a_python_check_must_load_an_imported_table_before_the_merge(
    main: Client, open_branch: OpenBranch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, dev = tmp_path / "imported", open_branch("dev")
    table_in(root, "db", "lazy")
    run(dev, DirectoryTree(str(root), {}), lazy=True)
    body = """
def check(merged):
    status, _, text = merged.session.request("GET", "v1/namespaces/db/tables/lazy")
    assert status == 200, text
"""
    python_check(tmp_path / "site", monkeypatch, body, "reading")
    with pytest.raises(
        CheckFailedError, match=r"metadata is not loaded yet.* call load_imported on its branch"
    ):
        call(main.session, "merge", source="dev")
    call(dev.session, "load_imported")
    call(main.session, "merge", source="dev")
    assert main.names("db") == ["lazy", "new", "t"]


def test_a_python_check_that_returns_lets_the_merge_pass(
    main: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_check(tmp_path / "site", monkeypatch, "def check(merged): return False", "lenient")
    assert [row[1] for row in call(main.session, "merge", source="dev")] == ["db.new"]


def number(client: Client) -> int:
    return client.session.catalog.head().head.number


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


def test_a_revert_is_checked_again_if_the_branch_moves(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "merge", source="dev")
    bad = str(number(main))
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "create_branch", name="other")
    open_branch("other").create("theirs")
    elsewhere = open_branch()

    def evaluate(merged: MergedState) -> str:
        if len(evaluator.seen) == 1:
            merge(elsewhere, Evaluator(), "other")
        return ""

    evaluator = Evaluator(evaluate)
    revert(main.session.catalog, bad, bad, ME, Options(evaluator=evaluator))
    found = [Client(main.session.derive(catalog=one.catalog)).names("db") for one in evaluator.seen]
    assert found == [["t"], ["t", "theirs"]]
    assert main.names("db") == ["t", "theirs"]


@pytest.mark.parametrize("seed", range(3))
def test_a_check_holds_in_every_state_while_many_merge_revert_and_cherry_pick(
    main: Client, open_branch: OpenBranch, seed: int
) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    most, began = 3, number(main)

    def evaluate(merged: MergedState) -> str:
        inside = Client(main.session.derive(catalog=merged.catalog))
        return "" if len(inside.names("db")) <= most else "too many tables"

    def work(id: int) -> None:
        rng, evaluator = random.Random(f"{seed} {id}"), Options(evaluator=Evaluator(evaluate))
        mine, own = open_branch(), open_branch(f"own{id}")
        for step in range(5):
            action = rng.choice(("merge", "merge", "revert", "cherry-pick", "properties"))
            catalog = mine.session.catalog
            try:
                if action == "properties":
                    mine.session.set_catalog_properties(
                        {"polaris.schema-merge": rng.choice(("true", "false"))}
                    )
                elif action == "merge":
                    own.create(f"t{id}{step}")
                    merge_branch(catalog, f"own{id}", ME, evaluator)
                elif action == "revert":
                    commit = str(number(mine) - rng.randrange(2))
                    revert(catalog, commit, commit, ME, evaluator)
                else:
                    cherry_pick(catalog, f"own{id}#{number(own)}", ME, evaluator)
            except (CheckFailedError, CommitFailedError, MergeConflictError):
                continue

    for id in range(4):
        call(main.session, "create_branch", name=f"own{id}")
    at_once([partial(work, id) for id in range(4)])
    states = [open_branch(as_of=str(commit)).names("db") for commit in range(began, number(main) + 1)]
    assert 1 < max(map(len, states)) <= most, seed


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


def test_commits_that_change_no_content_do_not_make_a_merge_stale(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    call(main.session, "create_branch", name="other")
    elsewhere, other = open_branch(), open_branch("other")

    def evaluate(merged: MergedState) -> str:
        other.create("short")
        other.ok("DELETE", table("short"))
        merge(elsewhere, Evaluator(), "other")
        moved.append(newest(main))
        return ""

    evaluator, moved = Evaluator(evaluate), [newest(main)]
    merge(main, evaluator)
    assert len(evaluator.seen) == 1
    assert moved[0] != moved[1]
    assert main.names("db") == ["new", "t"]


def add_column(client: Client, name: str) -> None:
    schema = client.load()["metadata"]["schemas"][0]
    field = {"id": 3, "name": name, "required": False, "type": "long"}
    more = {**schema, "fields": [*schema["fields"], field]}
    client.commit(
        "t",
        {"action": "add-schema", "schema": more, "last-column-id": 3},
        {"action": "set-current-schema", "schema-id": -1},
    )


def test_a_merge_is_checked_again_if_the_properties_that_decide_it_change(
    main: Client, open_branch: OpenBranch
) -> None:
    call(main.session, "unprotect_branch", name="main")
    add_column(main, "ours")
    add_column(open_branch("dev"), "theirs")
    call(main.session, "protect_branch", name="main")
    call(main.session, "add_check", branch="main", name="a", sql=TRUE)
    elsewhere = open_branch()

    def columns(client: Client) -> list[str]:
        metadata = client.load()["metadata"]
        [schema] = [one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]]
        return [field["name"] for field in schema["fields"]]

    def evaluate(merged: MergedState) -> str:
        elsewhere.session.set_catalog_properties({"polaris.schema-merge": "true"})
        return ""

    evaluator = Evaluator(evaluate)
    merge(main, evaluator, strategy=Strategy.THEIRS)
    seen = [columns(Client(main.session.derive(catalog=one.catalog))) for one in evaluator.seen]
    assert columns(main) == seen[-1]
    assert len(seen) == 2


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
    with pytest.raises(BadRequestError, match=r"'.nightly' is a staging area; add the check to its branch"):
        call(main.session, "add_check", branch="+nightly", name="a", sql=TRUE)
