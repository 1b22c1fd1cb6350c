"""Changes of existing branches: rename, move, protect, and change owner and comment."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from polaris_spark.catalog.branches import branches
from polaris_spark.catalog.branches.branch_changes import protect_branch
from polaris_spark.catalog.branches.branches import branch_of
from polaris_spark.catalog.branches.merge_base import BeginBranch, Contained
from polaris_spark.catalog.catalogs.references import head_name, tag_name
from polaris_spark.catalog.entities.namespace_changes import CreateNamespace
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Operation
from polaris_spark.commits.log import entries
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import State
from polaris_spark.commits.upkeep import raise_floor
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    CommitFailedError,
    HistoryTrimmedError,
    InputError,
    NotFoundError,
    ProtectedBranchError,
)
from polaris_spark.jobs import branches as jobs_branches
from polaris_spark.jobs.branches import SHOW
from polaris_spark.jobs.registry import call
from polaris_spark.system import registry
from tests.rest.client import Client, at_once, table
from tests.rest.conftest import OpenBranch

ME = Operation(b"", "me")


@pytest.fixture
def main(open_branch: OpenBranch) -> Client:
    """The branch `main` with the namespace `a`. The branch `dev` was created from it."""
    client = open_branch()
    client.namespace("a")
    call(client.session, "create_branch", name="dev", comment="trial")
    return client


def nothing(id: int, source: Head) -> BeginBranch:
    """Return the change that begins the history of a branch that was moved."""
    return BeginBranch(id, Contained(source.number, source.commit))


def names(client: Client, state: str = "") -> list[str]:
    """Return the namespaces at the root of a catalog in some state."""
    answer = client.send("GET", "v1/namespaces", headers={"Polaris-State": state} if state else {})
    assert answer.status == 200, answer
    return [one[0] for one in answer.body["namespaces"]]


def described(client: Client, name: str) -> dict[str, Any]:
    """Return the row of a branch, by column."""
    [row] = call(client.session, "describe_branch", name=name)
    assert row in call(client.session, "show_branches")
    return dict(zip([column.name for column in SHOW.columns], row, strict=True))


def test_a_branch_is_described_and_its_owner_and_comment_change(main: Client) -> None:
    found = described(main, "dev")
    assert (found["owner"], found["comment"], found["source"]) == (main.session.principal, "trial", "main")
    assert (found["ahead"], found["behind"], found["protected"]) == (0, 0, False)
    altered = call(main.session, "alter_branch", name="dev", owner="ann")
    assert altered == [("dev", "ann", "trial", "main", None, None)]
    call(main.session, "alter_branch", name="dev", comment="")
    assert (described(main, "dev")["owner"], described(main, "dev")["comment"]) == ("ann", None)
    call(main.session, "drop_branch", name="dev")
    call(main.session, "undrop_branch", name="dev")
    assert described(main, "dev")["owner"] == "ann"
    call(main.session, "create_tag", name="v1")
    assert call(main.session, "alter_tag", name="v1", comment="x")[0][2] == "x"
    for procedure in ("describe_branch", "alter_branch", "protect_branch"):
        with pytest.raises(NotFoundError, match="no branch 'nowhere'"):
            call(main.session, procedure, name="nowhere")


def test_a_renamed_branch_keeps_its_identity_and_open_sessions_get_an_error(
    main: Client, open_branch: OpenBranch
) -> None:
    dev = open_branch("dev")
    dev.namespace("b")
    before = described(main, "dev")
    call(main.session, "rename_branch", name="dev", to="trial")
    after = described(main, "trial")
    assert after == {**before, "branch": "trial"}
    for method, body in (("GET", None), ("POST", {"namespace": ["c"]})):
        gone = dev.send(method, "v1/namespaces", body)
        assert gone.status == 404
        assert "dev" in str(gone)
    assert "no branch 'dev'; it was dropped or renamed" in str(dev.send("GET", "v1/namespaces"))
    open_branch("trial").namespace("c")
    merged = call(main.session, "merge", source="trial")
    assert [row[1] for row in merged] == ["b", "c"]
    assert call(main.session, "merge", source="trial") == []
    with pytest.raises(NotFoundError, match="no dropped branch 'dev'"):
        call(main.session, "undrop_branch", name="dev")
    call(main.session, "create_branch", name="dev")


def test_a_branch_says_when_it_was_created(main: Client) -> None:
    now = datetime.now(timezone.utc)
    call(main.session, "create_branch", name="of dev", source="dev")
    call(main.session, "create_tag", name="v1")
    shown = {name: described(main, name)["created_at"] for name in ("main", "dev", "of dev")}
    shown["v1"] = call(main.session, "describe_tag", name="v1")[0][-1]
    assert sorted(shown, key=lambda name: shown[name]) == ["main", "dev", "of dev", "v1"]
    assert all(abs(time - now) < timedelta(minutes=1) for time in shown.values())


def test_a_branch_is_not_renamed_to_a_name_that_is_taken_or_bad(main: Client) -> None:
    call(main.session, "create_tag", name="v1")
    for to, kind in (("main", "branch"), ("v1", "tag")):
        with pytest.raises(AlreadyExistsError, match=f"already has a {kind} '{to}'"):
            call(main.session, "rename_branch", name="dev", to=to)
    with pytest.raises(BadRequestError, match="the name of a branch"):
        call(main.session, "rename_branch", name="dev", to="a@b")
    with pytest.raises(BadRequestError, match="cannot be renamed"):
        call(main.session, "rename_branch", name="main", to="x")
    assert names(main, "dev") == ["a"]


def test_a_rename_that_meets_a_new_branch_leaves_the_branch_as_it_was(main: Client) -> None:
    references, row = main.session.catalog.references, main.session.catalog.row
    drop = references._drop

    def drop_and_create(change: Any) -> Any:
        dropped = drop(change)
        call(main.session, "create_branch", name="taken")
        return dropped

    references._drop = drop_and_create  # type: ignore[method-assign]
    with pytest.raises(AlreadyExistsError):
        references.rename(head_name(row, "dev"), head_name(row, "taken"), ME)
    references._drop = drop  # type: ignore[method-assign]
    assert {row[0] for row in call(main.session, "show_branches")} == {"main", "dev", "taken"}


class Died(BaseException):
    """The process dies."""


def begin_rename(main: Client, kind: str, to: str, meanwhile: Callable[[], object] | None = None) -> None:
    """Rename the branch dev or the tag v1 in a process that dies after the drop, or that is slow.

    Args:
        meanwhile: what happens after the drop instead of the death.
    """
    references = main.session.catalog.references
    drop = references._drop

    def drop_and_die(change: Any) -> Any:
        dropped = drop(change)
        references._drop = drop  # type: ignore[method-assign]
        if meanwhile is None:
            raise Died
        meanwhile()
        return dropped

    references._drop = drop_and_die  # type: ignore[method-assign]
    name = "dev" if kind == "branch" else "v1"
    with contextlib.suppress(Died):
        call(main.session, f"rename_{kind}", name=name, to=to)


@pytest.mark.parametrize("opened", ["trial", "dev", ""], ids=["new name", "old name", "list"])
def test_the_next_process_completes_the_rename_of_a_branch(
    main: Client, open_branch: OpenBranch, opened: str
) -> None:
    before = described(main, "dev")
    begin_rename(main, "branch", "trial")
    if opened == "trial":
        assert names(open_branch("trial")) == ["a"]
    elif opened:
        with pytest.raises(NotFoundError, match="no branch 'dev'"):
            open_branch("dev")
    assert [row[0] for row in call(main.session, "show_branches")] == ["main", "trial"]
    assert described(main, "trial") == {**before, "branch": "trial"}
    with pytest.raises(NotFoundError, match="no dropped branch 'dev'"):
        call(main.session, "undrop_branch", name="dev")


def test_the_next_process_completes_the_rename_of_a_tag(main: Client) -> None:
    call(main.session, "create_tag", name="v1")
    begin_rename(main, "tag", "v2")
    assert [row[0] for row in call(main.session, "show_tags")] == ["v2"]


def test_a_rename_that_another_process_completes_succeeds(main: Client) -> None:
    begin_rename(main, "branch", "trial", lambda: call(main.session, "show_branches"))
    assert [row[0] for row in call(main.session, "show_branches")] == ["main", "trial"]


def test_a_branch_keeps_its_name_if_the_new_one_is_taken_when_its_rename_is_completed(main: Client) -> None:
    begin_rename(main, "branch", "trial")
    call(main.session, "create_tag", name="v1")
    main.session.catalog.references.rename(
        tag_name(main.session.catalog.row, "v1"), tag_name(main.session.catalog.row, "trial"), ME
    )
    assert [row[0] for row in call(main.session, "show_branches")] == ["dev", "main"]
    assert names(main, "dev") == ["a"]


def test_a_branch_whose_rename_was_not_completed_outlives_its_grace_period(main: Client) -> None:
    begin_rename(main, "branch", "trial")
    references = main.session.catalog.references
    references.end_expired(0, ME)
    assert [row[0] for row in call(main.session, "show_branches")] == ["main", "trial"]


def test_a_branch_moves_to_another_state(main: Client, open_branch: OpenBranch) -> None:
    dev = open_branch("dev")
    for name in ("b", "c"):
        dev.namespace(name)
    began = described(main, "dev")["commit_number"] - 2
    call(main.session, "create_tag", name="v1")
    main.namespace("m")
    for to, expected in {
        str(began): ["a"],  # of its own history
        "main": ["a", "m"],
        "v1": ["a"],
        "main#2": ["a", "m"],
    }.items():
        [moved] = call(main.session, "reassign_branch", name="dev", to=to)
        assert moved[0] == "dev"
        assert names(dev) == names(main, "dev") == expected, to
    dev.namespace("d")
    assert names(main, "dev") == ["a", "d", "m"]
    [merged] = call(main.session, "merge", source="dev")
    assert merged[1] == "d"
    head = dev.session.catalog.head()
    logged = [entry.action for _, _, _, entry in entries(head.store, head.head)]
    assert logged[:2] == ["create-namespace", "reassign-branch"]
    call(main.session, "sweep")
    assert names(open_branch("dev")) == ["a", "d", "m"]


def test_a_branch_moves_only_from_the_expected_commit(main: Client, open_branch: OpenBranch) -> None:
    old = described(main, "dev")
    open_branch("dev").namespace("b")
    for expected in (str(old["commit_number"]), str(old["commit_id"])):
        with pytest.raises(CommitFailedError, match="branch 'dev' of catalog 'polaris' was not moved"):
            call(main.session, "reassign_branch", name="dev", to="main", expected=expected)
    catalog = main.session.catalog
    with pytest.raises(CommitFailedError, match="is at commit"):
        catalog.references.move(
            head_name(catalog.row, "dev"), catalog.head(), expected=old["commit_id"], first=nothing
        )
    assert names(main, "dev") == ["a", "b"]
    new = str(described(main, "dev")["commit_number"])
    call(main.session, "reassign_branch", name="dev", to="main", expected=new)
    assert names(main, "dev") == ["a"]


def test_a_branch_does_not_move_to_a_commit_that_was_trimmed_meanwhile(
    main: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = main.session.catalog
    references = catalog.references
    target = catalog.head()
    main.namespace("later")
    looked: list[int] = []
    find = registry.head_in

    def trimmed_and_fenced(*arguments: Any) -> Any:
        found = find(*arguments)
        if not looked:  # as a sweep does it
            newest = catalog.head()
            references.open(catalog.reference).amend(
                lambda head: raise_floor(head, references.store.get(newest.head.commit, Commit))
            )
            references.fence(branch_of(catalog, "dev").row_name)
        looked.append(1)
        return found

    monkeypatch.setattr(registry, "head_in", trimmed_and_fenced)
    before = branch_of(catalog, "dev").head
    with pytest.raises(HistoryTrimmedError):
        references.move(head_name(catalog.row, "dev"), target, expected=before.commit, first=nothing)
    assert looked == [1]
    assert branch_of(catalog, "dev").head.commit == before.commit


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_a_branch_that_moves_on_and_is_trimmed_while_another_begins_there_is_read_again(
    main: Client, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    catalog = main.session.catalog
    references, stale = catalog.references, catalog.head()
    main.namespace("later")
    newest = catalog.head()
    references.open(catalog.reference).amend(
        lambda head: raise_floor(head, references.store.get(newest.head.commit, Commit))
    )
    read = branches.branch_or_tag_of
    heads = [stale]
    monkeypatch.setattr(
        branches, "branch_or_tag_of", lambda *arguments: heads.pop() if heads else read(*arguments)
    )
    call(main.session, f"create_{kind}", name="made")
    assert heads == []
    assert names(main, "made") == ["a", "later"]


def test_only_merges_and_maintenance_change_a_protected_branch(main: Client, open_branch: OpenBranch) -> None:
    session = main.session
    main.create("t", namespace=("a",))
    call(session, "create_branch", name="work")
    assert call(session, "protect_branch", name="main") == [("main", True)]
    assert described(main, "main")["protected"] is True
    before = session.catalog.head().head
    for method, path, body in (
        ("POST", "v1/namespaces", {"namespace": ["x"]}),
        ("DELETE", table("t", ("a",)), None),
        ("POST", table("t", ("a",)), {"requirements": [], "updates": [
            {"action": "set-properties", "updates": {"my.k": "v"}}
        ]}),
    ):  # fmt: skip
        refused = main.send(method, path, body)
        assert refused.kind == (403, "ForbiddenException")
        assert "branch 'main' is protected: only merges, reverts and cherry-picks may change it" in str(
            refused
        )
    with pytest.raises(ProtectedBranchError, match="branch 'main' is protected"):
        call(session, "reassign_branch", name="main", to="work")
    assert session.catalog.head().head == before
    open_branch("work").namespace("w")
    assert [row[1] for row in call(session, "merge", source="work")] == ["w"]
    merged = session.catalog.head().head.number
    open_branch("work").namespace("picked")
    picked = described(main, "work")["commit_number"]
    assert [row[1:3] for row in call(session, "revert", commit=str(merged))] == [("w", "removed")]
    assert [row[1:3] for row in call(session, "cherry_pick", commit=f"work#{picked}")] == [
        ("picked", "added")
    ]
    for job in ("expire", "sweep", "trim", "compact_index", "remove_orphans", "purge_dropped"):
        call(session, job)
    session.set_catalog_properties({"gc.enabled": "false"})
    assert main.send("POST", "v1/namespaces", {"namespace": ["x"]}).status == 403
    call(session, "unprotect_branch", name="main")
    main.namespace("x")
    assert names(main) == ["a", "picked", "x"]


def test_a_protected_branch_is_not_dropped_or_renamed(main: Client) -> None:
    call(main.session, "protect_branch", name="dev")
    for name, arguments in {"drop_branch": {}, "rename_branch": {"to": "x"}}.items():
        with pytest.raises(ProtectedBranchError, match="branch 'dev' is protected: the branch must not be"):
            call(main.session, name, name="dev", **arguments)
    assert names(main, "dev") == ["a"]
    call(main.session, "unprotect_branch", name="dev")
    call(main.session, "rename_branch", name="dev", to="x")


def test_protection_does_not_pass_to_other_branches(main: Client, open_branch: OpenBranch) -> None:
    call(main.session, "protect_branch", name="main")
    call(main.session, "create_branch", name="fork")
    open_branch("fork").namespace("f")
    call(main.session, "reassign_branch", name="dev", to="main")
    open_branch("dev").namespace("d")
    assert [described(main, name)["protected"] for name in ("main", "fork", "dev")] == [True, False, False]


class _Late(CreateNamespace):
    """A change that calls a function between its preparation and its commit."""

    def __init__(self, client: Client, name: str, then: Callable[[], object]) -> None:
        super().__init__(client.session.catalog.context, ME, (name,), {})
        self.then: list[Callable[[], object]] = [then]

    def prepare(self, view: State) -> int:
        now = super().prepare(view)
        if self.then:
            self.then.pop()()
        return now


def test_a_change_that_was_prepared_before_the_protection_is_refused(
    main: Client, open_branch: OpenBranch
) -> None:
    other = open_branch().session
    late = _Late(main, "late", lambda: call(other, "protect_branch", name="main"))
    with pytest.raises(ProtectedBranchError, match="branch 'main' is protected"):
        main.session.catalog.commit(late)
    late = _Late(main, "late", lambda: call(other, "unprotect_branch", name="main"))
    main.session.catalog.commit(late)
    assert names(main) == ["a", "late"]


def test_a_transaction_does_not_change_a_protected_branch(main: Client) -> None:
    def protected_too_late() -> None:
        with main.session.transaction() as session:
            Client(session).namespace("x")
            call(main.session, "protect_branch", name="main")

    with pytest.raises(ProtectedBranchError, match="branch 'main' is protected"):
        protected_too_late()
    with main.session.transaction() as session:
        refused = Client(session).send("POST", "v1/namespaces", {"namespace": ["x"]})
        assert "the branch of this transaction is protected" in refused.error["message"]
    assert names(main) == ["a"]
    call(main.session, "unprotect_branch", name="main")
    with main.session.transaction() as session:
        Client(session).namespace("x")
    assert names(main) == ["a", "x"]


def test_a_tag_takes_the_name_of_a_branch_that_another_session_has_open(
    main: Client, open_branch: OpenBranch
) -> None:
    other = open_branch()
    other.ok("POST", "v1/namespaces", {"namespace": ["d"]}, headers={"Polaris-State": "dev"})
    call(main.session, "drop_branch", name="dev")
    call(main.session, "create_tag", name="dev")
    assert names(main, "dev") == ["a"]
    assert other.send("GET", "v1/namespaces", headers={"Polaris-State": "dev"}).status == 404
    assert names(other, "dev") == ["a"]


def test_racing_changes_of_a_protection_agree_in_the_end(main: Client, open_branch: OpenBranch) -> None:
    for _ in range(5):
        sessions = [main.session, open_branch().session]
        at_once(
            [
                partial(protect_branch, session.catalog, "dev", ME, protected=protected)
                for session, protected in zip(sessions, (True, False), strict=True)
            ]
        )
        refused = main.send(
            "POST", "v1/namespaces", {"namespace": ["x"]}, headers={"Polaris-State": "dev"}
        ).status
        assert (refused == 403) == described(main, "dev")["protected"]
        call(main.session, "unprotect_branch", name="dev")
        main.send("DELETE", "v1/namespaces/x", headers={"Polaris-State": "dev"})


def test_unused_branches_are_dropped(open_branch: OpenBranch) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    main = open_branch(clock=clock)
    main.namespace("a")
    for name in ("idle", "used", "kept"):
        call(main.session, "create_branch", name=name)
    call(main.session, "stage", name="area")
    call(main.session, "protect_branch", name="kept")
    clock.advance(10 * 24 * 3_600_000)
    main.ok("POST", "v1/namespaces", {"namespace": ["b"]}, headers={"Polaris-State": "used"})
    for unused_for, dry_run, expected in (
        ("11 d", False, []),
        ("9 d", True, [("+area", False), ("idle", False)]),
        ("9 d", False, [("+area", True), ("idle", True)]),
        ("9 d", False, []),
    ):
        found = call(main.session, "drop_unused_branches", unused_for=unused_for, dry_run=dry_run)
        assert [(row[0], row[-1]) for row in found] == expected
    assert {row[0] for row in call(main.session, "show_branches")} == {"main", "used", "kept"}
    call(main.session, "undrop_branch", name="idle")
    assert call(main.session, "drop_unused_branches", unused_for="1 d") == []
    with pytest.raises(InputError, match="unused_for is 'long'"):
        call(main.session, "drop_unused_branches", unused_for="long")


def test_branches_that_are_used_while_unused_ones_are_dropped_are_kept(
    open_branch: OpenBranch, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(int(time.time() * 1_000))
    main = open_branch(clock=clock)
    for name in ("dropped", "idle", "protected", "raced", "used"):
        call(main.session, "create_branch", name=name)
    clock.advance(10 * 24 * 3_600_000)
    listed = jobs_branches._all

    def then_changed(*arguments: Any) -> Any:
        found = listed(*arguments)
        monkeypatch.undo()
        call(main.session, "drop_branch", name="dropped")
        call(main.session, "protect_branch", name="protected")
        main.ok("POST", "v1/namespaces", {"namespace": ["b"]}, headers={"Polaris-State": "used"})
        monkeypatch.setattr(references, "drop", used_and_dropped)
        return found

    references, raced = main.session.catalog.references, list[str]()
    drop = references.drop

    def used_and_dropped(name: str, operation: Operation) -> Any:
        """Drop a branch just after a commit to it."""
        if name.endswith("/raced"):
            raced.append(name)
            main.ok("POST", "v1/namespaces", {"namespace": ["c"]}, headers={"Polaris-State": "raced"})
        return drop(name, operation)

    monkeypatch.setattr(jobs_branches, "_all", then_changed)
    assert [row[0] for row in call(main.session, "drop_unused_branches", unused_for="9 d")] == ["idle"]
    assert {row[0] for row in call(main.session, "show_branches")} == {"main", "protected", "raced", "used"}
    assert (len(raced), names(main, "raced")) == (1, ["c"])
    main.ok("POST", "v1/namespaces", {"namespace": ["d"]}, headers={"Polaris-State": "raced"})
