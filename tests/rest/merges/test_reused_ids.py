"""Merges of tables from which one side removed partition specs, sort orders or schemas: the rows of the other side stay
readable."""

from __future__ import annotations

import pytest

from tests.rest.appends import attempt, new_append, read_list, send, write_list, write_manifests
from tests.rest.client import Client, Json
from tests.rest.merges.steps import Opened, append, conflict, make, merge, revert, with_column


def commit(client: Client, *updates: Json) -> None:
    assert client.commit("t", *updates).status == 200


def add_spec(column: int) -> Json:
    field = {"name": f"p{column}", "transform": "identity", "source-id": column}
    return {"action": "add-spec", "spec": {"spec-id": 0, "fields": [field]}}


def choose_spec(id: int) -> Json:
    return {"action": "set-default-spec", "spec-id": id}


def remove_spec(id: int) -> Json:
    return {"action": "remove-partition-specs", "spec-ids": [id]}


def append_in(client: Client, spec: int) -> None:
    """Append a data file that is partitioned by a spec."""
    made = attempt(client.load()["metadata"], new_append(1))
    write_manifests(made)
    location = made.snapshot["manifest-list"]
    schema, about, manifests = read_list(location)
    for one in manifests:
        if one["added_snapshot_id"] == made.snapshot["snapshot-id"]:
            one["partition_spec_id"] = spec
    write_list(location, schema, about, manifests)
    assert send(client, made).status == 200


@pytest.fixture
def dev(main: Client, opened: Opened) -> Client:
    """A branch in which the default partition spec of the table `t` has the id 1."""
    commit(main, add_spec(1), choose_spec(-1))
    return opened("dev")


def test_a_partition_spec_that_new_rows_need_is_added_again(main: Client, dev: Client) -> None:
    commit(main, choose_spec(0), remove_spec(1))
    append_in(dev, spec=1)
    assert merge(main, "dev") == {"db.t": "merged"}
    merged, other = (client.load()["metadata"] for client in (main, dev))
    assert merged["partition-specs"] == other["partition-specs"]
    assert merged["default-spec-id"] == 0


def test_a_partition_spec_whose_field_has_the_name_of_a_new_column_is_a_conflict(
    main: Client, dev: Client
) -> None:
    commit(main, choose_spec(0), remove_spec(1))
    schema = with_column(main.load(), "p1", "long")
    commit(
        main, {"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}
    )
    append_in(dev, spec=1)
    conflict(main, "dev", "p1")


def test_an_id_that_stands_for_another_partition_spec_is_a_conflict(main: Client, dev: Client) -> None:
    commit(main, choose_spec(0), remove_spec(1))
    commit(main, add_spec(2))
    append_in(dev, spec=1)
    conflict(main, "dev", "partition spec with the id 1")


def test_a_revert_does_not_choose_another_partition_spec_with_the_same_id(main: Client, dev: Client) -> None:
    commit(main, choose_spec(0))
    number = main.session.catalog.head().head.number
    commit(main, remove_spec(1))
    commit(main, add_spec(2))
    conflict(main, str(number), "partition spec with the id 1", procedure="revert")
    assert revert(main, number, strategy="ours") == {"db.t": "kept"}


@pytest.mark.parametrize("reused", [False, True])
def test_new_snapshots_keep_a_schema_that_this_branch_removed(
    main: Client, opened: Opened, reused: bool
) -> None:
    schema = with_column(main.load(), "c", "long")
    current = {"action": "set-current-schema", "schema-id": -1}
    commit(main, {"action": "add-schema", "schema": schema}, current)
    dev = opened("dev")
    commit(main, {"action": "set-current-schema", "schema-id": 0})
    commit(main, {"action": "remove-schemas", "schema-ids": [1]})
    if reused:
        fewer = {**schema, "fields": schema["fields"][:1]}
        commit(main, {"action": "add-schema", "schema": fewer}, current)
    append(dev, "t")
    assert merge(main, "dev") == {"db.t": "merged"}
    metadata = main.load()["metadata"]
    used = metadata["snapshots"][-1]["schema-id"]
    [found] = [one for one in metadata["schemas"] if one["schema-id"] == used]
    assert found["fields"] == schema["fields"]
    assert make(main, "diff", from_state="main", to_state="dev")
