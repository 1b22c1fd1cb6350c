"""Appends after a concurrent commit. They are rebased on it, with the same result as the client's own retry."""

from __future__ import annotations

import tempfile
import uuid
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forking import context, preload
from tests.rest import appends
from tests.rest.appends import Append, Attempt, appendable, attempt, new_append, read_list, send, snapshot_of
from tests.rest.client import Client, Json, at_once, connect, identifier, new_key, set_properties
from tests.rest.conftest import Open
from tests.rest.icebergs import ROWS, open_table

preload(__name__)

VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


def load(client: Client, name: str = "t") -> Json:
    metadata: Json = client.load(name)["metadata"]
    return metadata


def accepted(client: Client, made: Attempt, name: str = "t") -> Json:
    """Send an attempt that must succeed, and return the metadata afterwards."""
    answer = send(client, made, name)
    assert answer.status == 200, answer
    metadata: Json = answer.body["metadata"]
    return metadata


def refusal(client: Client, made: Attempt) -> str:
    """Send an attempt that must conflict, check that the table is unchanged, and return the message."""
    before = load(client)
    answer = send(client, made)
    assert answer.kind == (409, "CommitFailedException"), answer
    assert load(client) == before
    message: str = answer.error["message"]
    return message


def comparable(metadata: Json, id: int) -> tuple[Any, ...]:
    """Return the content of a snapshot and its manifest list, without names of files and times."""
    snapshot = dict(snapshot_of(metadata, id))
    found = read_list(snapshot.pop("manifest-list"))
    snapshot.pop("timestamp-ms")
    return snapshot, found


# What is rebased


@settings(max_examples=25)
@given(
    version=st.integers(1, 3),
    steps=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["main", "dev"]),
            st.lists(st.integers(1, 5), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_a_rebased_append_is_what_the_clients_own_retry_would_have_been(
    version: int, steps: list[tuple[int, str, list[int]]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        client = connect(f"memory:{uuid.uuid4()}", folder)
        client.namespace("db")
        accepted(client, attempt(appendable(client, version=version), new_append(1)))
        head = {"snapshot-id": load(client)["current-snapshot-id"], "type": "branch"}
        client.commit("t", {"action": "set-snapshot-ref", "ref-name": "dev", **head})
        known = [load(client)]
        for back, branch, counts in steps:
            append = new_append(*counts, branch=branch)
            retry = attempt(known[-1], append).snapshot
            found = accepted(client, attempt(known[max(0, len(known) - 1 - back)], append))
            assert comparable(found, append.snapshot_id) == comparable(
                {"snapshots": [retry]}, append.snapshot_id
            )
            assert found["refs"][branch]["snapshot-id"] == append.snapshot_id
            assert found.get("last-sequence-number", 0) == retry.get("sequence-number", 0)
            known.append(found)
        rows = 1 + sum(sum(counts) for _, _, counts in steps)
        assert known[-1].get("next-row-id", rows) == rows
        client.session.close()


@VERSIONS
@pytest.mark.parametrize("mode", ["every-commit", "never"])
def test_32_writers_append_to_one_table_at_once_and_none_sees_a_conflict(
    opened: Open, store: str, warehouse: Path, mode: str, version: int
) -> None:
    clients = [opened(store, warehouse, metadata_files=mode) for _ in range(2)]
    clients[0].namespace("db")
    base = appendable(clients[0], version=version)
    works = [new_append(1 + n % 3, 2) for n in range(32)]

    def write(n: int) -> None:
        first = accepted(clients[n % 2], attempt(base, works[n]))
        accepted(clients[n % 2], attempt(first, new_append(1)))

    at_once([lambda n=n: write(n) for n in range(32)])  # type: ignore[misc]  # mypy cannot infer such a lambda
    metadata = load(clients[0])
    manifests = read_list(snapshot_of(metadata, metadata["current-snapshot-id"])["manifest-list"]).manifests
    records = sum(sum(append.counts) for append in works) + 32
    assert len(manifests) == len({manifest["manifest_path"] for manifest in manifests}) == 3 * 32
    assert sum(manifest["added_rows_count"] for manifest in manifests) == records
    summary = snapshot_of(metadata, metadata["current-snapshot-id"])["summary"]
    assert summary["total-records"] == str(records)
    if version == 3:
        ranges = sorted((m["first_row_id"], m["added_rows_count"]) for m in manifests)
        ends = [start + size for start, size in ranges]
        assert [start for start, _ in ranges] == [0, *ends[:-1]]
        assert metadata["next-row-id"] == records


def write_in_a_process(store: str, warehouse: str, base: Json, first: int) -> None:
    """Append 4 times in each of 8 threads, all on one base; snapshot ids begin with `first`."""
    client = connect(store, warehouse)

    def write(thread: int) -> None:
        for n in range(4):
            accepted(client, attempt(base, Append(first + thread * 4 + n, (1,))))

    at_once([lambda thread=thread: write(thread) for thread in range(8)])  # type: ignore[misc]  # as above
    client.session.close()


def test_writers_of_several_processes_see_no_conflict(
    opened: Open, shared_store: str, warehouse: Path
) -> None:
    client = opened(shared_store, warehouse)
    client.namespace("db")
    base = appendable(client)
    with ProcessPoolExecutor(2, mp_context=context) as processes:
        runs = [
            processes.submit(write_in_a_process, shared_store, str(warehouse), base, n)
            for n in (10**6, 10**7)
        ]
        for run in runs:
            run.result(120)
    metadata = load(client)
    manifests = read_list(snapshot_of(metadata, metadata["current-snapshot-id"])["manifest-list"]).manifests
    numbers = [manifest["sequence_number"] for manifest in manifests]
    assert numbers == list(range(64, 0, -1))


def test_an_append_of_pyiceberg_is_rebased_and_read_back(catalog: Client) -> None:
    appendable(catalog)
    tables = [open_table(catalog) for _ in range(4)]
    for table in tables:
        table.append(ROWS)
    found = open_table(catalog)
    assert found.scan().to_arrow().num_rows == 4 * ROWS.num_rows
    assert [snapshot.sequence_number for snapshot in found.snapshots()] == [1, 2, 3, 4]


def test_lists_of_different_writers_go_together(catalog: Client) -> None:
    base = appendable(catalog)
    mine = attempt(base, new_append(2))
    open_table(catalog).append(ROWS)
    metadata = accepted(catalog, mine)
    manifests = read_list(snapshot_of(metadata, metadata["current-snapshot-id"])["manifest-list"]).manifests
    assert [manifest["added_rows_count"] for manifest in manifests] == [2, ROWS.num_rows]


def test_fields_that_this_release_does_not_know_survive(catalog: Client) -> None:
    base = appendable(catalog)
    accepted(catalog, attempt(base, new_append(1)))
    unknown = {"name": "new_thing", "type": ["null", "string"], "default": None, "field-id": 599}
    append = new_append(1)
    made = attempt(base, append, unknown, new_thing="kept").changed(new_field={"a": [1]})
    found = snapshot_of(accepted(catalog, made), append.snapshot_id)
    assert found["new-field"] == {"a": [1]}
    listed = read_list(found["manifest-list"])
    assert [manifest["new_thing"] for manifest in listed.manifests] == ["kept", None]
    assert listed.schema == appends.list_schema(2, unknown)


def test_an_append_that_changes_properties_too_is_rebased(catalog: Client) -> None:
    base = appendable(catalog)
    accepted(catalog, attempt(base, new_append(1)))
    made = attempt(base, new_append(1))
    made.updates.append(set_properties(offset="7"))
    assert accepted(catalog, made)["properties"]["offset"] == "7"


def test_an_append_in_a_transaction_over_tables_is_rebased(catalog: Client) -> None:
    bases = {name: appendable(catalog, name) for name in ("t", "u")}
    accepted(catalog, attempt(bases["u"], new_append(1)), "u")
    changes = [
        {"identifier": identifier(name), "requirements": made.requirements, "updates": made.updates}
        for name, made in ((name, attempt(base, new_append(2))) for name, base in bases.items())
    ]
    catalog.ok("POST", "v1/transactions/commit", {"table-changes": changes})
    assert [len(load(catalog, name)["snapshots"]) for name in ("t", "u")] == [1, 2]


def test_a_rebased_append_that_is_sent_again_is_done_once(catalog: Client) -> None:
    base = appendable(catalog)
    accepted(catalog, attempt(base, new_append(1)))
    made, key = attempt(base, new_append(1)), new_key()
    answers = [send(catalog, made, key=key) for _ in range(2)]
    assert answers[0].status == 200
    assert answers[0].body == answers[1].body
    assert len(load(catalog)["snapshots"]) == 2


def test_the_catalogs_property_applies_to_tables_without_their_own(opened: Open, warehouse: Path) -> None:
    client = opened(f"memory:{uuid.uuid4()}", warehouse, **{"polaris.append-rebase": True})
    client.namespace("db")
    base = client.create("t")["metadata"]
    accepted(client, attempt(base, new_append(1)))
    accepted(client, attempt(base, new_append(1)))
    client.set("t", **{"polaris.append-rebase": "false"})
    assert (
        refusal(client, attempt(base, new_append(1)))
        == "Requirement failed: branch main was created concurrently"
    )


@pytest.mark.parametrize("version", [2, 3])
def test_an_append_to_a_branch_is_rebased_despite_changes_of_another_branch(
    catalog: Client, version: int
) -> None:
    base = accepted(catalog, attempt(appendable(catalog, version=version), new_append(1)))
    dev = {"ref-name": "dev", "type": "branch", "snapshot-id": base["current-snapshot-id"]}
    catalog.commit("t", {"action": "set-snapshot-ref", **dev})
    made = attempt(load(catalog), new_append(1, branch="dev"))
    overwrite = attempt(load(catalog), new_append(1))
    accepted(catalog, overwrite.changed(summary={**overwrite.snapshot["summary"], "operation": "overwrite"}))
    catalog.set("t", **{"polaris.append-rebase": "false"})
    assert refusal(catalog, made).startswith("Validation failed, please retry: ")
    catalog.set("t", **{"polaris.append-rebase": "true"})
    assert accepted(catalog, made)["refs"]["dev"]["snapshot-id"] == made.snapshot["snapshot-id"]


# What is not


@pytest.fixture
def base(catalog: Client) -> Json:
    """The table `t` with one snapshot, as a client has loaded it. Another commit has changed the table since."""
    base = accepted(catalog, attempt(appendable(catalog), new_append(1)))
    accepted(catalog, attempt(base, new_append(1)))
    return base


def rewritten(made: Attempt, **changes: Any) -> Attempt:
    """Return an attempt with changed values in its first manifest."""
    listed = read_list(made.snapshot["manifest-list"])
    listed.manifests[0].update(changes)
    appends.write_list(made.snapshot["manifest-list"], listed.schema, listed.metadata, listed.manifests)
    return made


def test_without_the_property_an_append_that_others_came_before_is_a_conflict(
    catalog: Client, base: Json
) -> None:
    catalog.commit("t", {"action": "remove-properties", "removals": ["polaris.append-rebase"]})
    assert "rebase" not in refusal(catalog, attempt(base, new_append(1)))


@pytest.mark.parametrize("operation", ["overwrite", "delete", "replace"])
def test_other_operations_are_neither_rebased_nor_passed_over(
    catalog: Client, base: Json, operation: str
) -> None:
    made = attempt(base, new_append(1))
    summary = {**made.snapshot["summary"], "operation": operation}
    assert "rebase" not in refusal(catalog, made.changed(summary=summary))
    newest = attempt(load(catalog), new_append(1))
    accepted(catalog, newest.changed(summary={**newest.snapshot["summary"], "operation": operation}))
    accepted(catalog, attempt(load(catalog), new_append(1)))
    assert f"has the operation {operation}" in refusal(catalog, attempt(base, new_append(1)))


def test_an_append_that_merged_manifests_is_not_rebased(catalog: Client, base: Json) -> None:
    made = attempt(base, new_append(1))
    listed = read_list(made.snapshot["manifest-list"])
    appends.write_list(
        made.snapshot["manifest-list"], listed.schema, listed.metadata, [{**listed.manifests[0]}]
    )
    assert "is missing or changed in the append's manifest list" in refusal(catalog, made)


@pytest.mark.parametrize(
    "change",
    [{"manifest_length": 7}, {"key_metadata": b"k"}, {"partitions": None}, {"min_sequence_number": 0}],
)
def test_an_append_that_changed_a_manifest_of_its_parent_is_not_rebased(
    catalog: Client, base: Json, change: Json
) -> None:
    made = attempt(base, new_append(1))
    listed = read_list(made.snapshot["manifest-list"])
    listed.manifests[1].update(change)
    appends.write_list(made.snapshot["manifest-list"], listed.schema, listed.metadata, listed.manifests)
    assert "is missing or changed in the append's manifest list" in refusal(catalog, made)


@pytest.mark.parametrize(
    "change",
    [
        {"deleted_files_count": 1},
        {"existing_files_count": 1},
        {"existing_rows_count": 1},
        {"content": 1},
        {"sequence_number": 1},
        {"min_sequence_number": 1},
        {"added_snapshot_id": 1},
    ],
)
def test_a_new_manifest_that_does_more_than_add_files_is_not_rebased(
    catalog: Client, base: Json, change: Json
) -> None:
    made = rewritten(attempt(base, new_append(1)), **change)
    assert "must contain only data files" in refusal(catalog, made)


def test_manifests_of_a_spec_that_is_gone_are_not_rebased(catalog: Client, base: Json) -> None:
    assert "no longer has partition spec 5" in refusal(
        catalog, rewritten(attempt(base, new_append(1)), partition_spec_id=5)
    )


def test_row_ids_that_do_not_add_up_are_not_rebased(catalog: Client) -> None:
    base = appendable(catalog, version=3)
    accepted(catalog, attempt(base, new_append(1)))
    assert "add 3 rows, but added-rows of its snapshot is 4" in refusal(
        catalog, attempt(base, new_append(3)).changed(added_rows=4)
    )


def test_an_append_made_before_a_format_upgrade_is_not_rebased(catalog: Client, base: Json) -> None:
    made = attempt(base, new_append(1))
    catalog.commit("t", {"action": "upgrade-format-version", "format-version": 3})
    assert "has format version 2, but the table has 3" in refusal(catalog, made)


def test_an_append_beside_a_format_upgrade_is_a_conflict_that_clients_repeat(catalog: Client) -> None:
    base = appendable(catalog, "fresh", version=2, **{"polaris.append-rebase": "false"})
    made = attempt(base, new_append(1))
    catalog.commit("fresh", {"action": "upgrade-format-version", "format-version": 3})
    assert send(catalog, made, "fresh").kind == (409, "CommitFailedException")
    accepted(catalog, attempt(load(catalog, "fresh"), new_append(1)), "fresh")


def test_an_append_and_a_property_that_other_clients_change_at_once_are_both_there(catalog: Client) -> None:
    base = appendable(catalog, "fresh", **{"polaris.append-rebase": "false"})
    catalog.set("fresh", theirs="1")
    accepted(catalog, attempt(base, new_append(1)), "fresh")
    properties = catalog.load("fresh")["metadata"]["properties"]
    assert properties["theirs"] == "1"


def test_a_branch_whose_manifests_got_no_row_ids_yet_is_not_appended_to(catalog: Client) -> None:
    older = attempt(appendable(catalog, version=2), new_append(2, branch="dev"))
    accepted(catalog, older)
    catalog.commit("t", {"action": "upgrade-format-version", "format-version": 3})
    made = attempt(load(catalog), new_append(1))
    to = {"ref-name": "main", "type": "branch", "snapshot-id": older.snapshot["snapshot-id"]}
    catalog.commit("t", {"action": "set-snapshot-ref", **to})
    assert "list of branch main has format version 2, but the table has 3" in refusal(catalog, made)


def test_encrypted_manifest_lists_are_not_rebased(catalog: Client, base: Json) -> None:
    assert "encrypted" in refusal(catalog, attempt(base, new_append(1)).changed(key_id="k"))
    catalog.set("t", **{"encryption.key-id": "k"})
    assert "encrypted" in refusal(catalog, attempt(base, new_append(1)))


@pytest.mark.parametrize("content", [None, b"", b"AGS1 is what encrypted files begin with", b"Obj\x01\x00"])
def test_a_list_that_cannot_be_read_is_not_rebased(
    catalog: Client, base: Json, content: bytes | None
) -> None:
    made = attempt(base, new_append(1))
    file = appends.path_of(made.snapshot["manifest-list"])
    file.unlink() if content is None else file.write_bytes(content)
    said = refusal(catalog, made)
    assert f"the append is not rebased: cannot read {made.snapshot['manifest-list']!r}: " in said


def test_a_file_that_is_too_long_for_a_list_is_not_read_into_memory(catalog: Client, base: Json) -> None:
    made = attempt(base, new_append(1))
    with appends.path_of(made.snapshot["manifest-list"]).open("r+b") as file:
        file.truncate(2**33)
    assert "the file has more than" in refusal(catalog, made)


def test_a_list_outside_of_the_table_is_not_read(catalog: Client, base: Json, tmp_path: Path) -> None:
    made = attempt(base, new_append(1))
    elsewhere = appends.path_of(made.snapshot["manifest-list"]).rename(tmp_path / "list.avro")
    assert "is in none of the table's locations" in refusal(
        catalog, made.changed(manifest_list=f"file://{elsewhere}")
    )
    assert "is in none of the table's locations" in refusal(
        catalog, made.changed(manifest_list="nowhere/../list.avro")
    )


@pytest.mark.parametrize("updates", [5, "x", [["a"]]])
def test_a_value_that_is_not_a_map_of_properties_causes_no_server_error(
    catalog: Client, base: Json, updates: object
) -> None:
    made = attempt(base, new_append(1))
    made.updates.append({"action": "set-properties", "updates": updates})
    assert send(catalog, made).status in (400, 409)


def test_a_field_of_the_heads_list_that_the_appends_list_lacks_is_not_lost(
    catalog: Client, base: Json
) -> None:
    unknown = {"name": "new_thing", "type": ["null", "string"], "default": None, "field-id": 599}
    accepted(catalog, attempt(load(catalog), new_append(1), unknown, new_thing="x"))
    assert "lacks the fields ['599']" in refusal(catalog, attempt(base, new_append(1)))


def test_an_append_to_a_branch_that_was_set_elsewhere_or_removed_is_not_rebased(
    catalog: Client, base: Json
) -> None:
    made = attempt(base, new_append(1))
    other = attempt(base, new_append(1)).snapshot | {"sequence-number": 3}
    catalog.commit(
        "t",
        {"action": "add-snapshot", "snapshot": {k: v for k, v in other.items() if k != "parent-snapshot-id"}},
    )
    to = {"ref-name": "main", "type": "branch", "snapshot-id": other["snapshot-id"]}
    catalog.commit("t", {"action": "set-snapshot-ref", **to})
    assert "no longer descends" in refusal(catalog, made)
    catalog.commit("t", {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert "branch main no longer exists" in refusal(catalog, made)


def test_the_retention_that_others_set_meanwhile_is_not_undone(catalog: Client, base: Json) -> None:
    head = {"snapshot-id": load(catalog)["current-snapshot-id"], "type": "branch"}
    catalog.commit("t", {"action": "set-snapshot-ref", "ref-name": "main", **head, "max-ref-age-ms": 5})
    assert "the append would undo a change to the retention of main" in refusal(
        catalog, attempt(base, new_append(1))
    )


def test_another_failing_requirement_is_reported(catalog: Client, base: Json) -> None:
    made = attempt(base, new_append(1))
    made.requirements.append({"type": "assert-current-schema-id", "current-schema-id": 9})
    assert "current schema changed" in refusal(catalog, made)


def test_the_same_snapshot_is_not_appended_twice(catalog: Client, base: Json) -> None:
    made = attempt(base, new_append(1))
    accepted(catalog, made)
    assert "exists already" in refusal(catalog, made)
