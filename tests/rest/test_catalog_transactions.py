"""How a transaction of several tables is committed or rolled back."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.backends.base import Backend
from polaris_spark.catalog.branches.states import catalog_at
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.merges import transactions
from polaris_spark.catalog.merges.transactions import Transaction, Transactions
from polaris_spark.catalog.rows import NAMES
from polaris_spark.clock import ManualClock
from polaris_spark.commits.change import Change
from polaris_spark.commits.log import entries
from polaris_spark.commits.state import State, reading_state
from polaris_spark.errors import (
    BadRequestError,
    HistoryTrimmedError,
    InputError,
    MergeConflictError,
    NotFoundError,
    OutcomeUnknownError,
    TryAgainError,
)
from polaris_spark.jobs.registry import call
from tests.rest.appends import appendable, attempt, new_append, send, write_manifests
from tests.rest.client import Client, at_once, identifier, path, set_properties, table
from tests.rest.conftest import OpenBranch
from tests.rest.steps import BOTH, Tx, read, two_tables, write


@pytest.fixture
def main(open_branch: OpenBranch, clock: ManualClock) -> Client:
    return two_tables(open_branch(clock=clock))


@BOTH
def test_nothing_is_left_of_a_transaction_that_is_rolled_back(main: Client, isolation: str) -> None:
    before = main.session.catalog.head().head
    tx = Tx(main, isolation)
    write(tx.client, "t", 1)
    tx.client.create("made")
    tx.roll_back()
    assert main.session.catalog.head().head == before
    with pytest.raises(ZeroDivisionError), main.session.transaction() as session:
        write(Client(session), "t", 1 // 0)
    assert main.session.catalog.head().head == before


def test_a_merged_table_has_only_the_metadata_file_of_the_merged_state(main: Client, tmp_path: Path) -> None:
    tx = Tx(main, "snapshot")
    for client in (tx.client, main):
        made = attempt(client.load("t")["metadata"], new_append(3))
        write_manifests(made)
        assert send(client, made, "t").status == 200
    before = metadata_files(tmp_path)
    tx.commit()
    [new] = metadata_files(tmp_path) - before
    assert main.load("t")["metadata-location"] == f"file://{new}"


def test_renames_and_views_and_drops_are_carried_out_together(main: Client) -> None:
    tx = Tx(main, "serializable")
    ends = [{"namespace": ["db"], "name": one} for one in ("t", "moved")]
    tx.client.ok("POST", "v1/tables/rename", {"source": ends[0], "destination": ends[1]})
    tx.client.create("t")
    tx.client.ok("DELETE", table("u"))
    tx.client.create("u", properties={"my.value": "9"})
    tx.commit()
    assert main.names("db") == ["moved", "t", "u"]
    assert (read(main, "moved"), read(main, "u")) == (0, 9)


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("moved", [False, True])
def test_a_commit_has_the_same_effect_whether_or_not_its_branch_has_changed(
    main: Client, clock: ManualClock, moved: bool, swept: bool
) -> None:
    """An unchanged branch gets the rows that the transaction computed. If the branch has changed, the transaction is
    merged."""
    main.create("other", properties={"my.value": "0"})
    main.create("gone")
    main.create("swapped", properties={"my.value": "3"})
    tx = Tx(main, "serializable")
    write(tx.client, "t", 1)
    write(tx.client, "t", 2)
    for source, target in (("u", "aside"), ("swapped", "u"), ("aside", "swapped")):
        tx.client.ok(
            "POST", "v1/tables/rename", {"source": identifier(source), "destination": identifier(target)}
        )
    tx.client.ok("POST", "v1/namespaces", {"namespace": ["new"]})
    tx.client.create("made")
    tx.client.ok("DELETE", table("gone"))
    changed = tx.client.load("t")["metadata"]
    made = content_id(tx.client, b"made")
    if moved:
        write(main, "other", 1)
    if swept:
        clock.advance(10)
        call(main.session, "sweep", retention="3d", grace="3d")
    tx.commit()
    assert main.names("db") == ["made", "other", "swapped", "t", "u"]
    assert [read(main, name) for name in ("t", "u", "swapped")] == [2, 3, 0]
    assert main.load("t")["metadata"]["properties"] == changed["properties"]
    assert (content_id(main, b"made") == made) is not swept
    head = main.session.catalog.head()
    logged = Counter(
        entry.action
        for _, commit, _, entry in entries(head.store, head.head)
        if commit.number == head.head.number
    )
    assert logged == {
        "create-namespace": 1,
        "create-table": 1,
        "drop-table": 1,
        "rename-table": 3,  # one of the exchanged tables gets another name meanwhile
        "update-table": 1,
    }


def content_id(client: Client, name: bytes) -> int:
    """Return the object id of the content of the entity whose key ends with this name."""
    state = reading_state(client.session.catalog.head())  # which a transaction does not record as read
    [found] = [id for key, id in contents(state) if key.endswith(name)]
    return found


def test_ten_tables_cost_less_than_ten_commits(main: Client) -> None:
    for number in range(10):
        main.create(f"n{number}")
    before = main.session.catalog.head().head.number
    with main.session.transaction() as session:
        for number in range(10):
            write(Client(session), f"n{number}", number)
    assert main.session.catalog.head().head.number == before + 1
    assert [read(main, f"n{number}") for number in range(10)] == list(range(10))


def test_mistakes_are_refused(main: Client) -> None:
    for isolation in ("no", None):
        with (
            pytest.raises(InputError, match="'serializable' or 'snapshot'"),
            main.session.transaction(isolation=isolation),  # type: ignore[arg-type]  # users may pass None
        ):
            pass
    tx = Tx(main, "snapshot")
    with pytest.raises(BadRequestError, match="a transaction is open"), tx.client.session.transaction():
        pass
    tx.commit()
    for procedure in ("commit", "rollback", "savepoint"):
        with pytest.raises(NotFoundError, match="no transaction is open"):
            call(main.session, procedure, **({"name": "a"} if procedure == "savepoint" else {}))


def test_savepoints_undo_a_part_of_the_changes(main: Client) -> None:
    def at(state: str) -> Client:
        return Client(main.session.derive(catalog=catalog_at(main.session.catalog, state)))

    [(state, *_)] = call(main.session, "begin")
    write(at(state), "t", 1)
    call(at(state).session, "savepoint", name="one")
    write(at(state), "t", 2)
    at(state).create("made")
    with pytest.raises(NotFoundError, match="no savepoint 'two'; its savepoints are: one"):
        call(at(state).session, "rollback", savepoint="two")
    [(after,)] = call(at(state).session, "rollback", savepoint="one")
    earlier = Client(main.session.derive(catalog=main.session.catalog.on_branch(state)))
    assert "use the state that rollback returned" in earlier.send("GET", table("t")).error["message"]
    assert (read(at(after), "t"), at(after).names("db")) == (1, ["t", "u"])
    write(at(after), "u", 5)
    [(parent, *_), _] = call(at(after).session, "commit")
    assert parent == "main"
    assert (read(main, "t"), read(main, "u"), main.names("db")) == (1, 5, ["t", "u"])


def test_the_session_of_a_transaction_has_savepoints(main: Client) -> None:
    with main.session.transaction() as session:
        inside = Client(session)
        write(inside, "t", 1)
        etag = {"If-None-Match": inside.send("GET", table("t")).headers["ETag"]}
        session.savepoint("one")
        for value in (2, 3):
            write(inside, "t", value)
            assert inside.send("GET", table("t"), headers=etag).status == 200
            session.rollback_to("one")
            assert inside.send("GET", table("t"), headers=etag).status == 304
            assert read(inside, "t") == 1
        with pytest.raises(NotFoundError, match="no savepoint 'two'; its savepoints are: one"):
            session.rollback_to("two")
        write(inside, "u", 5)
    assert (read(main, "t"), read(main, "u")) == (1, 5)
    with pytest.raises(NotFoundError, match="no transaction is open"):
        session.savepoint("late")
    with pytest.raises(NotFoundError, match="no transaction is open"):
        session.rollback_to("one")


def test_an_abandoned_transaction_ends_by_itself(main: Client, clock: ManualClock) -> None:
    [(state, *_)] = call(main.session, "begin")
    abandoned = Client(main.session.derive(catalog=catalog_at(main.session.catalog, state)))
    write(abandoned, "t", 1)
    clock.advance(23 * 3_600_000)
    assert read(abandoned, "t") == 1
    clock.advance(23 * 3_600_000)
    call(abandoned.session, "savepoint", name="used")
    clock.advance(25 * 3_600_000)
    with pytest.raises(NotFoundError, match="no transaction is open"):
        call(abandoned.session, "commit")
    with pytest.raises(NotFoundError, match="has ended"):
        catalog_at(main.session.catalog, state)
    assert read(main, "t") == 0


def test_nothing_is_written_before_the_commit(main: Client, tmp_path: Path) -> None:
    backend = main.session.catalog.references.store.backend
    before = rows(backend), metadata_files(tmp_path)
    for commit in (False, True):
        tx = Tx(main, "snapshot")
        write(tx.client, "t", 1)
        write(tx.client, "t", 2)
        tx.client.create("made")
        tx.client.ok("DELETE", table("u"))
        assert (rows(backend), metadata_files(tmp_path)) == before
        if commit:
            tx.commit()
        else:
            tx.roll_back()
            assert (rows(backend), metadata_files(tmp_path)) == before
    new = {main.load(name)["metadata-location"] for name in ("t", "made")}
    assert {f"file://{path}" for path in metadata_files(tmp_path) - before[1]} == new
    for name in ("t", "made"):
        loaded = main.load(name)
        written = json.loads(Path(loaded["metadata-location"].removeprefix("file://")).read_text())
        assert written == loaded["metadata"]
        listed = [one["metadata-file"] for one in loaded["metadata"]["metadata-log"]]
        assert all(Path(one.removeprefix("file://")).exists() for one in listed)


def metadata_files(folder: Path) -> set[Path]:
    """The metadata files below a folder."""
    return set(folder.rglob("*.metadata.json"))


def rows(backend: Backend) -> list[object]:
    """All rows of a store."""
    found: list[object] = []
    for name in ("objects", "references"):
        for split in backend.splits(name, None, 1):
            found += [batch.to_pylist() for batch in backend.scan(split)]
    return found


def test_objects_of_a_transaction_get_ids_above_the_fence_of_a_sweep(
    main: Client, clock: ManualClock
) -> None:
    """A concurrent sweep may still delete unreachable rows below its fence."""
    tx = Tx(main, "snapshot")
    tx.client.create("made", properties={"my.value": "1"})
    appendable(tx.client, "appended")
    made = attempt(tx.client.load("appended")["metadata"], new_append(3))
    write_manifests(made)
    assert send(tx.client, made, "appended").status == 200
    clock.advance(10)
    call(main.session, "sweep", retention="3d", grace="3d")
    catalog = main.session.catalog
    fence = catalog.head().head.fence
    assert fence
    loaded = tx.client.load("appended")["metadata"]
    tx.commit()
    after = main.load("appended")["metadata"]
    changed = {"last-updated-ms": 0, "metadata-log": []}
    assert {**after, **changed} == {**loaded, **changed}
    state = catalog.view()
    found = {id for key, id in contents(state) if key.endswith((b"made", b"appended"))}
    assert len(found) == 2
    store, reached = catalog.references.store, set(found)
    while found:
        found = {id for one in store.read(found).values() for id in one.header.strong} - reached
        reached |= found
    assert min(reached) > fence


def contents(state: State) -> list[tuple[bytes, int]]:
    """Return the key and the content's object id of each table, view and namespace."""
    return [(key, entry.pointer) for key, entry in state.scan(NAMES, b"", None)]


def test_a_transaction_whose_beginning_was_trimmed_is_refused(main: Client, clock: ManualClock) -> None:
    tx = Tx(main, "snapshot")
    write(tx.client, "t", 1)
    write(main, "u", 1)
    clock.advance(50 * 60_000)
    write(main, "u", 2)
    call(main.session, "sweep", retention="30m", grace="30m")
    with pytest.raises(HistoryTrimmedError, match="roll back, and repeat the transaction"):
        tx.commit()
    assert read(main, "t") == 0


def test_a_transaction_is_refused_if_its_branch_was_moved(main: Client) -> None:
    call(main.session, "create_branch", name="dev")
    write(main, "t", 3)
    dev = Client(main.session.derive(catalog=catalog_at(main.session.catalog, "dev")))
    write(dev, "u", 8)
    write(dev, "u", 9)
    tx = Tx(dev, "snapshot")
    write(tx.client, "t", 1)
    call(main.session, "reassign_branch", name="dev", to="main")
    with pytest.raises(HistoryTrimmedError, match="no longer in the history of the branch"):
        tx.commit()
    assert read(dev, "t") == 3


def test_a_commit_whose_outcome_is_unknown_can_be_repeated_and_is_made_once(
    main: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = Tx(main, "snapshot")
    made = attempt(tx.client.load("t")["metadata"], new_append(3))
    write_manifests(made)
    assert send(tx.client, made, "t").status == 200
    state = tx.client.session.catalog.branch
    commit = Catalog.commit

    def lost(self: Catalog, change: Change[Any, Any]) -> Any:
        commit(self, change)
        raise OutcomeUnknownError("the answer is lost")

    monkeypatch.setattr(Catalog, "commit", lost)
    transaction = main.session.resource(Transactions).of(tx.client.session.catalog)
    with pytest.raises(OutcomeUnknownError):
        call(tx.client.session, "commit")
    monkeypatch.undo()
    assert transaction.operation_id
    for name in ("t", "u"):
        assert (
            "not known whether"
            in tx.client.send(
                "POST",
                table(name),
                {"requirements": [], "updates": [{"action": "set-properties", "updates": {"my.value": "9"}}]},
            ).error["message"]
        )
    call(tx.client.session, "savepoint", name="a")
    with pytest.raises(BadRequestError, match="not known whether"):
        call(tx.client.session, "rollback", savepoint="a")
    before = main.session.catalog.head().head.number
    call(tx.client.session, "commit")
    assert main.session.catalog.head().head.number == before
    assert [one["summary"]["total-records"] for one in main.load("t")["metadata"]["snapshots"]] == ["3"]
    with pytest.raises(NotFoundError, match="has ended"):
        catalog_at(main.session.catalog, state)


def test_a_transaction_costs_the_round_trips_of_one_commit(
    main: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        main.create(f"n{number}")
    backend = main.session.catalog.references.store.backend
    calls: list[str] = []
    for name in ("read_objects", "write_objects", "read_reference", "swap_reference", "write_and_swap"):
        real = getattr(backend, name)

        def counted(*args: Any, _name: str = name, _real: Any = real) -> Any:
            calls.append(_name)
            return _real(*args)

        monkeypatch.setattr(backend, name, counted)
    with main.session.transaction() as session:
        for number in range(10):
            write(Client(session), f"n{number}", number)
    assert calls[-1] == "write_and_swap"
    assert len(calls) <= 3, calls


def test_purging_a_table_in_a_transaction_that_is_rolled_back_deletes_nothing(main: Client) -> None:
    made = attempt(main.load("t")["metadata"], new_append(3))
    write_manifests(made)
    assert send(main, made, "t").status == 200
    location = Path(main.load("t")["metadata"]["location"].removeprefix("file://"))
    before = sorted(location.rglob("*"))
    assert before
    tx = Tx(main, "snapshot")
    tx.client.ok("DELETE", table("t"), query={"purgeRequested": "true"})
    tx.roll_back()
    call(main.session, "purge_dropped")
    assert sorted(location.rglob("*")) == before


def test_purging_a_table_in_a_transaction_leaves_its_files_to_the_job_after_the_commit(
    main: Client, clock: ManualClock
) -> None:
    location = Path(main.load("t")["metadata"]["location"].removeprefix("file://"))
    made = attempt(main.load("t")["metadata"], new_append(3))
    write_manifests(made)
    assert send(main, made, "t").status == 200
    with main.session.transaction() as session:
        Client(session).ok("DELETE", table("t"), query={"purgeRequested": "true"})
    assert any(location.rglob("*.avro"))
    clock.advance(4 * 24 * 3_600_000)
    call(main.session, "purge_dropped", clock_is_right=True)
    assert not any(location.rglob("*.avro"))


def test_the_changes_of_one_request_take_no_longer_than_a_commit_may(
    main: Client, clock: ManualClock
) -> None:
    def work(copy: Catalog) -> None:
        inside = Client(main.session.derive(catalog=copy))
        write(inside, "t", 1)
        clock.advance(61_000)
        assert inside.send("POST", "v1/namespaces", {"namespace": ["late"]}).kind == (
            503,
            "ServiceUnavailableException",
        )
        raise TryAgainError("late")

    before = main.session.catalog.head().head
    with pytest.raises(TryAgainError):
        transactions.at_once(main.session.catalog, main.session.operation(), work)
    assert main.session.catalog.head().head == before


@pytest.mark.parametrize("filled", [False, True])
def test_a_namespace_is_dropped_and_created_again_with_other_content(main: Client, *, filled: bool) -> None:
    for namespace in (("a",), ("a", "b")):
        main.namespace(*namespace)
        main.create("old", namespace)
    tx = Tx(main, "snapshot")
    for namespace in (("a", "b"), ("a",)):
        tx.client.ok("DELETE", table("old", namespace))
        tx.client.ok("DELETE", path(*namespace))
    for namespace in (("a",), ("a", "c")):
        tx.client.namespace(*namespace)
        tx.client.create("new", namespace)
    write(main, "t", 1)
    if filled:
        main.create("more", ("a",))
        tx.refused("namespace a: the other state removed it, but this branch has table a.more in it")
    else:
        tx.commit()
        assert [main.names("a"), main.names("a", "c")] == [["new"], ["new"]]
        assert main.send("GET", path("a", "b")).status == 404


def test_the_log_says_what_a_transaction_changed(main: Client) -> None:
    with main.session.transaction() as session:
        client = Client(session)
        for count in (3, 4):
            made = attempt(client.load("t")["metadata"], new_append(count))
            write_manifests(made)
            assert send(client, made, "t").status == 200
        write(client, "u", 5)
        client.ok("POST", "v1/namespaces", {"namespace": ["new"]}, headers={"X-Polaris-Commit-Ticket": "12"})
    head = main.session.catalog.head()
    newest = [
        entry for _, commit, _, entry in entries(head.store, head.head) if commit.number == head.head.number
    ]
    summaries = {entry.key.rstrip(b"\x00")[-1:]: entry.summary for entry in newest}
    assert len(newest) == 3
    assert all(summary["from"] == "transaction" for summary in summaries.values())
    assert summaries[b"t"]["added-records"] == "7"
    assert summaries[b"u"]["set my.value"]
    assert summaries[b"w"]["commit.ticket"] == "12"


def test_nothing_that_is_stored_points_to_the_state_of_an_open_transaction(main: Client) -> None:
    [(state, *_)] = call(main.session, "begin")
    inside = Client(main.session.derive(catalog=catalog_at(main.session.catalog, state)))
    inside.create("made")
    for value in range(3):
        write(main, "u", value)
    for session, procedure, arguments in (
        (main.session, "merge", {"source": state}),
        (main.session, "merge", {"source": state, "dry_run": True}),
        (main.session, "cherry_pick", {"commit": f"{state}#{inside.session.catalog.head().head.number}"}),
        (main.session, "create_branch", {"name": "dev", "source": state}),
        (inside.session, "create_branch", {"name": "dev"}),
        (inside.session, "create_tag", {"name": "v1"}),
    ):
        with pytest.raises(BadRequestError, match="is the state of a transaction and not a branch"):
            call(session, procedure, **arguments)
    call(main.session, "create_branch", name="dev")
    with pytest.raises(BadRequestError, match="is the state of a transaction and not a branch"):
        call(main.session, "reassign_branch", name="dev", to=state)
    call(inside.session, "rollback")
    assert main.names("db") == ["t", "u"]


def test_a_change_is_not_lost_if_it_comes_during_the_commit(
    main: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = Tx(main, "snapshot")
    write(tx.client, "t", 1)
    found = transactions._difference
    late: list[Any] = []

    def during(*arguments: Any) -> Any:
        difference = found(*arguments)
        late.append(
            tx.client.send("POST", table("u"), {"requirements": [], "updates": [set_properties(a="1")]})
        )
        return difference

    monkeypatch.setattr(transactions, "_difference", during)
    tx.commit()
    assert [one.kind for one in late] == [(400, "BadRequestException")]
    assert "the transaction is being committed" in late[0].error["message"]
    assert (read(main, "t"), "a" in main.load("u")["metadata"]["properties"]) == (1, False)


def test_a_transaction_that_could_not_be_committed_accepts_changes(main: Client) -> None:
    [(state, *_)] = call(main.session, "begin")
    inside = Client(main.session.derive(catalog=catalog_at(main.session.catalog, state)))
    call(inside.session, "savepoint", name="begin")
    write(inside, "t", 1)
    write(main, "t", 2)
    with pytest.raises(MergeConflictError):
        call(inside.session, "commit")
    write(inside, "u", 1)
    call(inside.session, "rollback")
    assert (read(main, "t"), read(main, "u")) == (2, 0)


def test_a_transaction_is_committed_by_one_of_two_threads(
    main: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(state, *_)] = call(main.session, "begin", isolation="snapshot")
    inside = Client(main.session.derive(catalog=catalog_at(main.session.catalog, state)))
    made = attempt(inside.load("t")["metadata"], new_append(3))
    write_manifests(made)
    assert send(inside, made, "t").status == 200
    opened = [main.session.resource(Transactions).of(inside.session.catalog)] * 2
    outcomes: list[str] = []

    def commit(transaction: Transaction) -> None:
        try:
            main.session.resource(Transactions).commit(transaction, main.session.operation())
            outcomes.append("committed")
        except NotFoundError as error:
            outcomes.append(str(error))

    at_once([partial(commit, transaction) for transaction in opened])
    assert sorted(outcomes) == ["committed", "no transaction is open in this session; begin one with begin()"]
    assert [one["summary"]["total-records"] for one in main.load("t")["metadata"]["snapshots"]] == ["3"]


@BOTH
def test_tables_exchange_their_names(main: Client, isolation: str) -> None:
    main.create("v", properties={"my.value": "2"})
    write(main, "u", 1)
    before = {name: main.load(name)["metadata"] for name in "tuv"}
    tx = Tx(main, isolation)
    for source, target in (("t", "aside"), ("u", "t"), ("v", "u"), ("aside", "v")):
        tx.client.ok(
            "POST", "v1/tables/rename", {"source": identifier(source), "destination": identifier(target)}
        )
    write(tx.client, "u", 5)
    tx.commit()
    assert main.names("db") == ["t", "u", "v"]
    assert [read(main, name) for name in "tuv"] == [1, 5, 0]
    for old, new in (("u", "t"), ("v", "u"), ("t", "v")):
        assert main.load(new)["metadata"]["table-uuid"] == before[old]["table-uuid"]


def test_the_end_of_a_block_finds_out_whether_it_was_committed(
    main: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, lost = Catalog.commit, []

    def once_lost(self: Catalog, change: Change[Any, Any]) -> Any:
        result = commit(self, change)
        if not lost and self.branch == "main":
            lost.append(result)
            raise OutcomeUnknownError("the answer is lost")
        return result

    before = main.session.catalog.head().head.number
    with main.session.transaction(isolation="snapshot") as session:
        made = attempt(Client(session).load("t")["metadata"], new_append(3))
        write_manifests(made)
        assert send(Client(session), made, "t").status == 200
        monkeypatch.setattr(Catalog, "commit", once_lost)
    assert lost
    assert main.session.catalog.head().head.number == before + 1
    assert [one["summary"]["total-records"] for one in main.load("t")["metadata"]["snapshots"]] == ["3"]
