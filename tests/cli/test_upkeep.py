"""The commands for a whole store: `fsck` and `realms`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey
from polaris_spark.clock import SystemClock
from polaris_spark.store_uris import StoreURI
from polaris_spark.system.realms import RealmRecord, Realms, RealmState
from polaris_spark.system.stores import system_references
from tests.cli.catalogs import make_catalog, run
from tests.rest.client import connect


def test_a_sound_store_is_said_to_be_sound(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    answer = run("fsck", store)
    assert (answer.code, answer.out.strip()) == (0, "no problems found")
    assert run("fsck", store, "--json").json == []


def test_fsck_reports_damaged_rows_even_if_the_store_cannot_be_opened(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    uri = StoreURI.parse(store)
    backend = open_backend(uri, {})
    instance = run("realm", "list", store, "--json").json[0]["instance"]
    row = backend.read_reference(instance, "root")
    assert row is not None
    backend.delete_reference(instance, "root", row.version)
    backend.close()
    answer = run("fsck", store, "--realm", "default")
    assert answer.code == 1
    assert "error missing: default root: the registry has no row" in answer.out
    found = run("fsck", store, "--json")
    assert found.code == 1
    assert {"kind": "missing", "key": "root"}.items() <= found.json[0].items()
    assert run("fsck", store, "--realm", "nobody").code == 2


def test_a_realm_is_deactivated_activated_and_purged(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    refused = run("realm", "purge", store, "default", "--yes")
    assert refused.code == 2
    assert "ACTIVE" in refused.err
    assert "INACTIVE" in run("realm", "deactivate", store, "default").out
    assert run("realm", "reactivate", store, "default", "--json").json["state"] == "ACTIVE"
    instance = run("realm", "deactivate", store, "default", "--json").json["instance"]
    assert run("realm", "purge", store, "default", "--yes", "--json").json["instance"] == instance
    assert run("realm", "list", store, "--json").json == []
    backend = open_backend(StoreURI.parse(store), {})
    left = [batch for split in backend.splits("objects", [instance], 1) for batch in backend.scan(split)]
    assert sum(batch.num_rows for batch in left) == 0
    backend.close()


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (
            RealmState.LOADING,
            "realm 'half' is LOADING: a migration or an import is writing rows to it; finish or abort the migration",
        ),
        (RealmState.INITIALIZING, "realm 'half' is INITIALIZING: create it again"),
    ],
)
def test_a_realm_that_is_not_filled_yet_is_not_activated(tmp_path: Path, state: RealmState, why: str) -> None:
    store = make_catalog(tmp_path)
    backend = open_backend(StoreURI.parse(store), {})
    records = Realms(backend, SystemClock())
    record = RealmRecord(name="half", instance="abc", state=state)
    system_references(backend).put("realm/half", None, system_references(backend).row(record))
    answer = run("realm", "reactivate", store, "half")
    assert answer.code == 2
    assert why in answer.err
    assert records.find("half") == record
    backend.close()


def test_a_lost_object_is_named(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    backend = open_backend(StoreURI.parse(store), {})
    (split,) = backend.splits("objects", None, 1)
    rows = [row for batch in backend.scan(split) for row in batch.to_pylist()]
    lost = next(row for row in rows if b"schema" in row["value"][:30])
    backend.delete_objects(lost["realm"], [ObjectKey(lost["id"])])
    backend.close()
    (problem,) = run("fsck", store, "--json").json
    assert (problem["kind"], problem["key"]) == ("missing", f"{lost['id']}/0")


def test_a_purge_without_a_terminal_requires_yes(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    run("realm", "deactivate", store, "default")
    refused = run("realm", "purge", store, "default")
    assert refused.code == 2
    assert "add --yes" in refused.err
    assert "permanently" in refused.err
    assert [one["name"] for one in run("realm", "list", store, "--json").json] == ["default"]


@pytest.mark.parametrize(
    ("name", "why"), [("default", "'default' is ACTIVE"), ("nobody", "no realm 'nobody'")]
)
def test_a_realm_that_cannot_be_purged_is_refused_before_the_question(
    tmp_path: Path, name: str, why: str
) -> None:
    refused = run("realm", "purge", make_catalog(tmp_path), name)
    assert refused.code == 2
    assert why in refused.err
    assert "add --yes" not in refused.err


@pytest.mark.parametrize(("answer", "left"), [("n", ["default"]), ("y", [])])
def test_a_purge_asks_on_a_terminal(tmp_path: Path, answer: str, left: list[str]) -> None:
    store = make_catalog(tmp_path)
    run("realm", "deactivate", store, "default")
    ours, theirs = pty.openpty()
    program = "import sys; from polaris_spark.cli import main; main()"
    asked = subprocess.Popen(
        [sys.executable, "-c", program, "realm", "purge", store, "default"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.write(ours, f"{answer}\n".encode())
    assert asked.wait(60) == (2 if left else 0)
    assert b"Delete all rows of realm" in os.read(ours, 65_536)
    os.close(ours)
    os.close(theirs)
    assert [one["name"] for one in run("realm", "list", store, "--json").json] == left


def test_a_realm_is_created_described_and_given_properties(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/new.db"
    assert run("realm", "create", store, "tenant").code == 2
    created = run("realm", "create", store, "tenant", "--create", "--json").json
    assert (created["name"], created["state"], created["properties"]) == ("tenant", "ACTIVE", {})
    assert (
        "realm 'tenant' already exists (its state is ACTIVE)" in run("realm", "create", store, "tenant").err
    )
    changed = run("realm", "set", store, "tenant", "--set", "owner=me", "--set", "cost=7", "--json").json
    assert changed["properties"] == {"owner": "me", "cost": "7"}
    assert run("realm", "set", store, "tenant", "--unset", "cost", "--json").json["properties"] == {
        "owner": "me"
    }
    assert run("realm", "describe", store, "tenant", "--json").json == {
        **created,
        "properties": {"owner": "me"},
    }
    assert "owner" in run("realm", "describe", store, "tenant").out
    for words in (
        ("--set", "moved-to=x"),
        ("--unset", "importing-run"),
        ("--set", "a=1", "--unset", "a"),
        (),
    ):
        assert run("realm", "set", store, "tenant", *words).code == 2
    assert run("realm", "describe", store, "nobody").code == 2
    client = connect(store, str(tmp_path / "warehouse"), realm="tenant", create=True)
    client.namespace("db")
    client.session.close()
