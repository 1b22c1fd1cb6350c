"""Tags of a catalog: names of commits that do not move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polaris_spark
from polaris_spark.catalog.branches.branches import tag_of
from polaris_spark.catalog.branches.merge_base import BeginBranch, Contained
from polaris_spark.catalog.catalogs.references import tag_name
from polaris_spark.catalog.rows import PROPERTIES, ROW
from polaris_spark.errors import (
    AlreadyExistsError,
    BadRequestError,
    ForbiddenError,
    InputError,
    NotFoundError,
)
from polaris_spark.jobs.registry import call
from tests.rest.client import Client, table


@pytest.fixture
def main(tmp_path: Path) -> Iterator[Client]:
    """A catalog with the namespace `a`, the tag `v1`, and then the namespace `b`."""
    place = {"store": f"sqlite://{tmp_path / 'store.db'}", "warehouse": str(tmp_path / "warehouse")}
    with polaris_spark.connect(**place) as session:
        client = Client(session)
        client.namespace("a")
        call(session, "create_tag", name="v1", comment="first")
        client.namespace("b")
        yield client


def names(client: Client, **headers: str) -> list[str]:
    """The namespaces at the root of a catalog."""
    answer = client.send("GET", "v1/namespaces", headers={k.replace("_", "-"): v for k, v in headers.items()})
    assert answer.status == 200, answer
    return [one[0] for one in answer.body["namespaces"]]


def as_of(main: Client, text: str, **properties: Any) -> list[str]:
    """The namespaces of a catalog that the property `as-of` opens."""
    store = main.session.connection.uri
    with polaris_spark.connect(store=str(store), as_of=text, **properties) as then:
        return names(Client(then))


def test_a_tag_keeps_a_state_and_can_be_named_wherever_a_state_is(main: Client) -> None:
    assert names(main) == ["a", "b"]
    assert names(main, Polaris_State="v1") == ["a"]
    assert as_of(main, "v1") == ["a"]
    [diff] = call(main.session, "diff", from_state="v1", to_state="main")
    assert diff[:3] == ("namespace", "b", "added")
    [used] = call(main.session, "use", state="v1")
    assert used[:2] == ("v1", 1)
    refused = main.send("POST", "v1/namespaces", {"namespace": ["x"]}, headers={"Polaris-State": "v1"})
    assert refused.kind == (403, "ForbiddenException")
    with pytest.raises(InputError, match="no branch 'v1'; to read the tag of this name"):
        polaris_spark.connect(store=str(main.session.connection.uri), branch="v1")


def test_a_renamed_tag_keeps_its_commit_and_its_files(main: Client) -> None:
    session = main.session
    call(session, "create_branch", name="dev")
    [before] = call(session, "describe_tag", name="v1")
    [renamed] = call(session, "rename_tag", name="v1", to="v2")
    assert renamed == ("v2", *before[1:4])
    [after] = call(session, "describe_tag", name="v2")
    assert after[1:-1] == before[1:-1]
    assert names(main, Polaris_State="v2") == ["a"]
    with pytest.raises(NotFoundError, match="no tag 'v1'; its tags are: 'v2'"):
        call(session, "rename_tag", name="v1", to="v3")
    for taken in ("dev", "v2"):
        with pytest.raises(AlreadyExistsError, match=f"already has a (branch|tag) '{taken}'"):
            call(session, "rename_tag", name="v2", to=taken)
    with pytest.raises(BadRequestError, match="contains '@' or '#'"):
        call(session, "rename_tag", name="v2", to="a@b")
    assert [row[0] for row in call(session, "show_tags")] == ["v2"]
    assert call(session, "fsck") == []


def test_a_tag_begins_at_a_branch_a_tag_a_commit_or_a_time(main: Client) -> None:
    session, number = main.session, main.session.catalog.head().head.number
    call(session, "create_branch", name="dev", source="v1")
    time = tag_of(session.catalog, "v1").head.time
    for name, where in {
        "of dev": {"source": "dev"},
        "of v1": {"source": "v1"},
        "of 2": {"at": "2"},
        "of time": {"at": str(time)},
    }.items():
        call(session, "create_tag", name=name, **where)
    found = {row[0]: (row[1], row[6]) for row in call(session, "show_tags")}
    assert found == {
        "of 2": (number, "main#2"),
        "of dev": (2, "dev"),
        "of time": (1, f"main#{time}"),
        "of v1": (1, "v1"),
        "v1": (1, "main"),
    }
    assert names(main, Polaris_State="dev") == ["a"]
    [described] = call(session, "describe_tag", name="v1")
    assert described[4:7] == (session.principal, "first", "main")
    with pytest.raises(InputError, match="at '77' is not a commit"):
        call(session, "create_tag", name="t", at="77")
    with pytest.raises(NotFoundError, match="no branch 'nowhere'"):
        call(session, "create_tag", name="t", source="nowhere")
    with pytest.raises(BadRequestError, match="the name of a tag"):
        call(session, "create_tag", name="a@b")


def test_a_tag_accepts_no_commit(main: Client) -> None:
    catalog = main.session.catalog
    before = tag_of(catalog, "v1").head
    with pytest.raises(ForbiddenError, match="is a tag, which accepts no commits"):
        catalog.references.commit(tag_name(catalog.row, "v1"), BeginBranch(1, Contained(1, before.commit)))
    main.session.set_catalog_properties({"gc.enabled": "false"})  # written to every branch
    call(main.session, "compact_index")
    assert tag_of(catalog, "v1").head == before
    assert main.session.catalog.head().index(PROPERTIES).get(ROW) is not None


def test_a_dropped_tag_can_be_restored(main: Client) -> None:
    session = main.session
    [before] = call(session, "show_tags")
    assert call(session, "drop_tag", name="v1") == [("v1", True)]
    assert call(session, "show_tags") == []
    assert call(session, "drop_tag", name="v1", if_exists=True) == [("v1", False)]
    with pytest.raises(NotFoundError, match="no tag 'v1'; its tags are: none"):
        call(session, "drop_tag", name="v1")
    assert main.send("GET", "v1/namespaces", headers={"Polaris-State": "v1"}).status == 404
    with pytest.raises(InputError, match="must be a commit number"):
        as_of(main, "v1")
    assert call(session, "undrop_tag", name="v1") == [before[:4]]
    assert [row[:-1] for row in call(session, "show_tags")] == [before[:-1]]
    assert as_of(main, "v1") == ["a"]
    with pytest.raises(NotFoundError, match="no dropped tag 'v1'"):
        call(session, "undrop_tag", name="v1")


def test_a_branch_and_a_tag_do_not_share_a_name(main: Client) -> None:
    session = main.session
    with pytest.raises(AlreadyExistsError, match="already has a tag 'v1'"):
        call(session, "create_branch", name="v1")
    with pytest.raises(AlreadyExistsError, match="already has a branch 'main'"):
        call(session, "create_tag", name="main")
    with pytest.raises(AlreadyExistsError, match="already has a branch 'main'"):
        call(session, "create_tag", name="main", if_not_exists=True)
    assert call(session, "create_tag", name="v1", if_not_exists=True)[0][-1] is False
    call(session, "drop_tag", name="v1")
    call(session, "create_branch", name="v1")
    with pytest.raises(AlreadyExistsError, match="already has a branch 'v1'"):
        call(session, "undrop_tag", name="v1")
    call(session, "drop_branch", name="v1")
    call(session, "undrop_tag", name="v1")
    with pytest.raises(AlreadyExistsError, match="already has a tag 'v1'"):
        call(session, "undrop_branch", name="v1")


def test_a_commit_goes_before_a_tag_in_as_of_and_after_it_elsewhere(main: Client) -> None:
    call(main.session, "create_tag", name="2", source="v1")
    assert as_of(main, "2") == ["a", "b"]
    assert names(main, Polaris_State="2") == ["a"]
    call(main.session, "create_tag", name="999", source="v1")  # the history has no such commit
    assert as_of(main, "999") == ["a"]
    call(main.session, "create_branch", name="dev", source="v1")
    assert as_of(main, "dev") == ["a"]
    with pytest.raises(InputError, match="must be a commit number"):
        as_of(main, "nosuch")


def test_a_table_of_a_tag_is_read_by_its_name(main: Client) -> None:
    main.create("t", namespace=("a",), properties={"my.state": "old"})
    call(main.session, "create_tag", name="v2")
    main.ok("DELETE", table("t", ("a",)))
    loaded = main.ok("GET", table("t@v2", ("a",)))
    assert loaded["metadata"]["properties"]["my.state"] == "old"


def test_a_tag_whose_creator_died_before_it_wrote_the_row_is_completed(main: Client) -> None:
    """Later commits of the branch do not prove that the tag had a row."""
    catalog = main.session.catalog
    for name in "cdefg":
        main.namespace(name)
    references = catalog.references
    registered = references.lookup(tag_name(catalog.row, "v1"))
    assert registered is not None
    backend, realm = references.store.backend, references.store.realm
    row = backend.read_reference(realm, registered.row_name)
    assert row is not None
    backend.delete_reference(realm, registered.row_name, row.version)
    assert call(main.session, "sweep") is not None
    assert as_of(main, "v1") == ["a"]
    assert call(main.session, "fsck") == []
