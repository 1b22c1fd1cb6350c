"""Migration between databases while threads and other processes commit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from polaris_spark.errors import InputError, PolarisError, RealmStateError, StoreURIError
from polaris_spark.jobs.registry import call
from polaris_spark.maintenance.migration.marks import SourceRealm
from polaris_spark.maintenance.migration.run import Migration
from polaris_spark.system.realms import RealmState
from polaris_spark.testing.waiting import PATIENCE_S
from tests.forking import context, preload
from tests.maintenance.movers import (
    Writers,
    migrate_and_die,
    namespaces,
    opened,
    states,
    write,
    write_elsewhere,
)
from tests.servers.postgresql import PostgreSQL
from tests.stores import DATABASES, SHARED, StoreOn, configured

preload(__name__)

ORDINARY = (("sqlite", "sqlite"), ("sqlite", "postgresql"), ("postgresql", "s3"))
OTHERS = sorted(
    {*((one, "sqlite") for one in DATABASES), *(("sqlite", one) for one in DATABASES if one != "memory")}
    - {*ORDINARY}
)
PAIRS = [*ORDINARY, *(pytest.param(*pair, marks=pytest.mark.databases) for pair in OTHERS)]


def arguments(uri: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Return the arguments that name a target for a procedure. The password is in an environment variable."""
    given = configured(uri)
    if "store.password" not in given:
        return {"target": given["store"]}
    monkeypatch.setenv("TARGET_PASSWORD", given["store.password"])
    return {"target": given["store"], "target_options": {"password": "env:TARGET_PASSWORD"}}


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_no_acknowledged_commit_is_lost_and_all_writers_continue_in_the_target(
    here: str, there: str, store_on: StoreOn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = store_on(here), store_on(there)
    with opened(source, warehouse=str(tmp_path)) as session:
        assert write(session, "first")
        elsewhere = here in SHARED and there in SHARED
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(
            target=write_elsewhere, args=(source, target, "process", sending), daemon=True
        )
        with Writers(source, target, name="thread", threads=2, enough=5) as writers:
            if elsewhere:
                process.start()
                sending.close()  # so that its death is told
                assert receiving.poll(PATIENCE_S)
                assert receiving.recv() == "began"
            rows = call(session, "migrate_realm", **arguments(target, monkeypatch), max_pause="60s")
            acknowledged = ["first", *writers.join()]
        if elsewhere:
            assert receiving.poll(PATIENCE_S)
            acknowledged += receiving.recv()
            process.join(PATIENCE_S)
        assert write(session, "late") is None
    steps = {row[0]: row for row in rows}
    assert next(iter(steps)) == "copy"
    assert {"compare", "switch", "verify"} <= set(steps)
    assert "difference" not in steps
    assert steps["switch"][4] > 0
    with opened(target) as moved:
        assert namespaces(moved) == set(acknowledged)
        assert [row for row in call(moved, "fsck") if row[0] != "warning"] == []
    assert states(source, target) == [RealmState.INACTIVE, RealmState.ACTIVE]


@pytest.mark.parametrize("left", [3, 12, 25, 30, 33, 36, 39, 42])
def test_a_process_that_is_killed(left: int, store_on: StoreOn, tmp_path: Path) -> None:
    source, target = store_on("sqlite"), store_on("sqlite")
    with opened(source, warehouse=str(tmp_path)) as session:
        assert write(session, "first")
        process = context.Process(target=migrate_and_die, args=(source, target, left), daemon=True)
        with Writers(source, target, name="thread", threads=2, enough=5) as writers:
            process.start()
            process.join(PATIENCE_S)
            if process.exitcode == 0:
                assert states(source, target) == [RealmState.INACTIVE, RealmState.ACTIVE]
            else:
                assert process.exitcode == -signal.SIGKILL
                if states(source, target)[0] is RealmState.ACTIVE:
                    call(session, "migrate_realm", target=target, max_pause="60s")
            acknowledged = ["first", *writers.join()]
    with opened(target) as moved:
        assert namespaces(moved) == set(acknowledged)
    assert states(source, target) == [RealmState.INACTIVE, RealmState.ACTIVE]


def test_a_realm_under_another_name_in_the_same_store(store_on: StoreOn, tmp_path: Path) -> None:
    source = store_on("sqlite")
    with opened(source, warehouse=str(tmp_path)) as session:
        assert write(session, "first")
        call(session, "migrate_realm", target=source, target_realm="renamed", max_pause="60s")
        assert write(session, "late") is None
    with opened(source, realm="renamed") as renamed:
        assert write(renamed, "second")
        assert namespaces(renamed) == {"first", "second"}
        with pytest.raises(RealmStateError, match=r"already has a realm 'default' \(state INACTIVE\)"):
            call(renamed, "migrate_realm", target=source, target_realm="default")


def test_wrong_targets_leave_the_source_as_it_was(
    store_on: StoreOn, tmp_path: Path, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store_on("sqlite")
    with opened(source, warehouse=str(tmp_path)) as session:
        with pytest.raises(InputError, match="'target' is missing"):
            call(session, "migrate_realm")
        with pytest.raises(StoreURIError, match="contains a password"):
            call(session, "migrate_realm", target="postgresql://me:secret@host/db")
        with pytest.raises(InputError, match="env:NAME") as told:
            call(
                session,
                "migrate_realm",
                target="postgresql://me@host/db",
                target_options={"password": "secret!"},
            )
        assert "secret!" not in str(told.value)
        with pytest.raises(PolarisError):
            call(session, "migrate_realm", target="postgresql://127.0.0.1:1/db?connect-timeout=1s")
        for uri in (postgresql.unprivileged("migrating"), postgresql.wrong_credentials("migrating")):
            with pytest.raises(PolarisError):
                call(session, "migrate_realm", **arguments(uri, monkeypatch))
        with pytest.raises(RealmStateError, match=r"already has a realm 'default' \(state ACTIVE\)"):
            call(session, "migrate_realm", target=source)
        assert session.connection.realms.active("default").properties == {}
        assert write(session, "still")


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("s3://bucket/realm", {"password": "hunter2"}),
        ("s3://bucket/realm", {"secret_access_key": "hunter2"}),
        ("s3://bucket/realm", {"session-token": "hunter2"}),
        ("az://container/realm", {"sas": "hunter2"}),
        ("az://container/realm", {"accountKey": "hunter2"}),
        ("bigtable://project/instance", {"credentials": '{"private_key": "hunter2"}'}),
        ("mongodb://host/db", {"authMechanismProperties": "AWS_SESSION_TOKEN:hunter2"}),
        ("s3://bucket/realm", {"endpoint": "http://me:hunter2@host"}),
        ("s3://bucket/realm?secret_access_key=hunter2", {}),
        ("az://container/realm?sig=hunter2", {}),
        ("s3://me:hunter2@bucket/realm", {}),
    ],
)
def test_a_secret_of_the_target_in_plain_sight_is_refused_unseen(
    store_on: StoreOn, tmp_path: Path, target: str, options: dict[str, str]
) -> None:
    with opened(store_on("sqlite"), warehouse=str(tmp_path)) as session:
        with pytest.raises(InputError, match=r"secret|password") as told:
            call(session, "migrate_realm", target=target, target_options=options)
        assert "hunter2" not in str(told.value)
        assert session.connection.realms.active("default").properties == {}


def test_an_aborted_migration_can_begin_anew_elsewhere(store_on: StoreOn, tmp_path: Path) -> None:
    source, target, other = (store_on("sqlite") for _ in range(3))
    with opened(source, warehouse=str(tmp_path)) as session:
        assert write(session, "first")
        realm = SourceRealm(session.connection.realms, "default", session.catalog.references)
        with opened(other, warehouse=str(tmp_path), realm="unused") as begun:
            steps = Migration(realm, source, begun.connection, "default").run()
            assert next(steps).name == "copy"
            steps.close()
        with pytest.raises(RealmStateError, match=r"is already being moved to "):
            call(session, "migrate_realm", target=target)
        assert states(source, target)[1] is None
        assert call(session, "migrate_realm", abort=True, target=other)[0][0] == "abort"
        assert states(source, other) == [RealmState.ACTIVE, RealmState.PURGING]
        call(session, "migrate_realm", abort=True)  # and again
        assert write(session, "second")
        call(session, "migrate_realm", target=target)
    with opened(target) as moved:
        assert namespaces(moved) == {"first", "second"}
