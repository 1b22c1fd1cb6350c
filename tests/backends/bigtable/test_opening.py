"""Opening a store of Bigtable: options, credentials, permissions, tables, processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from google.cloud.bigtable_admin_v2 import BigtableTableAdminClient
from google.cloud.bigtable_admin_v2.types import ColumnFamily, GcRule, Table
from google.cloud.bigtable_v2.services.bigtable import BigtableClient
from google.cloud.bigtable_v2.types import Mutation

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow, Swapped
from polaris_spark.backends.bigtable.settings import Settings
from polaris_spark.errors import (
    OutcomeUnknownError,
    StateError,
    StoreURIError,
    TryAgainError,
)
from polaris_spark.store_uris import Secret, StoreURI
from polaris_spark.testing.processes import in_threads, rows
from polaris_spark.testing.stores import row, with_options
from polaris_spark.testing.waiting import until_it_works
from tests.backends.bigtable.relay import Relay, lose, refuse
from tests.stores import ServerOf


def test_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(StoreURIError, match="credentials") as caught:
        open_backend("bigtable://project/instance", {"password": Secret("correct horse")})
    assert "horse" not in str(caught.value)


def test_options_that_the_uri_lacks_have_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST", raising=False)
    uri = StoreURI.parse("bigtable://example.com:project/instance")
    settings = Settings.parse(uri, {})
    assert settings.table_name("objects") == (
        "projects/example.com:project/instances/instance/tables/polaris_spark-objects"
    )
    assert (settings.host, settings.plain) == ("bigtable.googleapis.com:443", False)
    elsewhere = Settings.parse(uri, {"endpoint": "https://private.example"})
    assert (elsewhere.host, elsewhere.plain) == ("private.example:443", False)
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", "localhost:8086")
    assert (Settings.parse(uri, {}).host, Settings.parse(uri, {}).plain) == ("localhost:8086", True)
    assert not Settings.parse(uri, {"endpoint": "https://private.example"}).plain


def test_a_table_id_has_at_most_fifty_characters() -> None:
    settings = Settings.parse(StoreURI.parse(f"bigtable://project/instance/{'p' * 39}"), {})
    assert max(len(settings.table_id(table)) for table in ("objects", "references")) == 50


@pytest.mark.parametrize("content", [None, "no json", "{}", '{"type": "service_account"}'])
def test_credentials_that_cannot_be_used_are_reported(
    tmp_path: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BIGTABLE_EMULATOR_HOST", raising=False)
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    backend = open_backend("bigtable://project/instance", {"credentials": str(path)})
    with pytest.raises(StoreURIError, match=r"key\.json cannot be used"):
        backend.read_reference("realm", "name")
    backend.close()


# Permissions


def test_a_user_without_admin_permissions_can_use_existing_tables(
    backend: Backend, relay: Relay, far_uri: str
) -> None:
    for method in ("CreateTable", "GetTable", "DropRowRange"):
        relay.rules[method] = refuse("PERMISSION_DENIED")
    other = open_backend(far_uri)
    other.setup()
    assert other.insert_reference("realm", "name", current := row()) == Swapped()
    assert other.swap_reference("realm", "name", current.version, row()) == Swapped()
    assert other.drop_realm("realm") is False
    assert other.read_reference("realm", "name") is not None
    other.close()


def test_a_user_without_the_right_to_create_tables_gets_the_role_that_has_it(
    relay: Relay, far_uri: str
) -> None:
    relay.rules["CreateTable"] = refuse("PERMISSION_DENIED")
    with pytest.raises(StateError, match=r"roles/bigtable\.admin to create tables"):
        open_backend(far_uri).setup()


def test_a_user_without_permissions_gets_an_error_at_once(
    backend: Backend, relay: Relay, far_uri: str
) -> None:
    for status in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        relay.rules["ReadRows"] = refuse(status)
        for use in (lambda b: b.setup(), lambda b: b.read_reference("realm", "name")):
            other = open_backend(far_uri)
            with pytest.raises(StateError, match=r"roles/bigtable\.user"):
                use(other)
            other.close()


def test_missing_write_permissions_are_reported(far: Backend, relay: Relay) -> None:
    for method in ("CheckAndMutateRow", "MutateRows"):
        relay.rules[method] = refuse("PERMISSION_DENIED")
    for change in (
        lambda: far.insert_reference("realm", "name", row()),
        lambda: far.swap_reference("realm", "name", b"v", row()),
        lambda: far.write_objects("realm", [ObjectRow(1, 0, b"x")]),
    ):
        with pytest.raises(StateError, match="PERMISSION_DENIED"):
            change()


@pytest.mark.parametrize("status", ["FAILED_PRECONDITION", "INVALID_ARGUMENT"])
def test_an_app_profile_without_transactions_is_named(far: Backend, relay: Relay, status: str) -> None:
    relay.rules["CheckAndMutateRow"] = refuse(status, "single-row transactions are not allowed")
    with pytest.raises(StateError, match=r"single-cluster routing .* option 'app-profile'"):
        far.swap_reference("realm", "name", b"v", row())


def test_a_swap_that_is_refused_for_want_of_capacity_was_not_done(far: Backend, relay: Relay) -> None:
    far.insert_reference("realm", "name", current := row())
    relay.rules["CheckAndMutateRow"] = refuse("RESOURCE_EXHAUSTED", "quota")
    with pytest.raises(TryAgainError, match="no capacity"):
        far.swap_reference("realm", "name", current.version, row())
    assert far.read_reference("realm", "name") == current


@pytest.mark.parametrize("status", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "ABORTED", "UNKNOWN"])
def test_a_swap_whose_answer_is_lost_is_sent_once_and_in_doubt(
    far: Backend, relay: Relay, status: str
) -> None:
    far.insert_reference("realm", "name", current := row())
    relay.rules["CheckAndMutateRow"] = lose(status)
    relay.seen.clear()
    new = row()
    with pytest.raises(OutcomeUnknownError, match=status):
        far.swap_reference("realm", "name", current.version, new)
    assert relay.seen["CheckAndMutateRow"] == 1
    assert far.read_reference("realm", "name") == new


# Tables


def test_tables_that_hold_rows_of_other_programs_are_not_changed(
    uri: str, admin: BigtableTableAdminClient, client: BigtableClient, instance: str, references: str
) -> None:
    theirs = Table(column_families={"f": ColumnFamily()})
    admin.create_table(parent=instance, table_id=references.rpartition("/")[2], table=theirs)
    cell = Mutation.SetCell(family_name="f", column_qualifier=b"theirs", value=b"x")
    client.mutate_row(table_name=references, row_key=b"their row", mutations=[Mutation(set_cell=cell)])
    backend = open_backend(uri)
    for _ in range(2):
        with pytest.raises(StoreURIError, match="rows of another program"):
            backend.setup()
        with pytest.raises(StoreURIError, match="does not contain a store"):
            backend.read_reference("realm", "name")
    backend.close()


def test_tables_that_forget_by_age_are_refused(
    uri: str, admin: BigtableTableAdminClient, instance: str, references: str
) -> None:
    by_age = GcRule(max_age={"seconds": 3_600})
    family = ColumnFamily(gc_rule=GcRule(union=GcRule.Union(rules=[GcRule(max_num_versions=1), by_age])))
    admin.create_table(
        parent=instance, table_id=references.rpartition("/")[2], table=Table(column_families={"f": family})
    )
    with pytest.raises(StoreURIError, match="deletes cells by age"):
        open_backend(uri).setup()


def test_a_store_that_is_closed_while_it_is_opened_leaves_no_channel(uri: str) -> None:
    backend = open_backend(uri)
    calls = backend._calls  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="is closed"):
        calls.open(lambda *_: backend.close())
    for channel in calls._channels:
        with pytest.raises(ValueError, match="closed channel"):
            channel.stream("SampleRowKeys", backend._objects.sample(), time.monotonic() + 1)  # type: ignore[attr-defined]


def test_an_incomplete_setup_is_completed(
    uri: str, backend: Backend, admin: BigtableTableAdminClient, references: str
) -> None:
    admin.delete_table(name=references)
    with pytest.raises(StoreURIError, match="does not contain a store"):
        backend.read_reference("realm", "name")
    other = open_backend(uri)
    other.setup()
    assert other.insert_reference("realm", "name", row()) == Swapped()
    other.close()


def test_tables_keep_one_version_of_a_cell(
    backend: Backend, admin: BigtableTableAdminClient, references: str
) -> None:
    for name in (references, references.replace("-references", "-objects")):
        assert admin.get_table(name=name).column_families["f"].gc_rule == GcRule(max_num_versions=1)


def test_stores_of_one_instance_are_separate(server_of: ServerOf, uri: str) -> None:
    place, _, options = uri.partition("?")
    backends = [open_backend(f"{place}{end}?{options}") for end in ("", "-a", ".b", "_B", "_b")]
    for number, backend in enumerate(backends):
        backend.setup()
        backend.write_objects("realm", [ObjectRow(number, 0, b"x")])
    assert [rows(b, b.splits("objects", None, 2))[0][1] for b in backends] == [0, 1, 2, 3, 4]
    for backend in backends:
        backend.close()


# Connections and processes


def test_threads_do_not_wait_one_after_another_for_a_server_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        backend = open_backend(f"bigtable://project/instance?endpoint=http://127.0.0.1:{port}&timeout=1s")

        def read(_: int) -> str:
            with pytest.raises(TryAgainError) as caught:
                backend.read_reference("realm", "name")
            return str(caught.value)

        told = in_threads(12, read)
        assert any("for another thread to connect" in words for words in told)
        backend.close()


def test_no_thread_waits_forever_for_a_free_slot(uri: str, backend: Backend) -> None:
    narrow = open_backend(with_options(uri, "channels=1&timeout=1s"))
    until_it_works(lambda: narrow.read_reference("realm", "name"))
    with ExitStack() as busy:
        for _ in range(32):
            busy.enter_context(narrow._calls._channel())  # type: ignore[attr-defined]
        with pytest.raises(TryAgainError, match="32 operations, the maximum"):
            narrow.read_reference("realm", "name")
    assert until_it_works(lambda: narrow.read_reference("realm", "name")) is None
    narrow.close()


def test_more_threads_than_slots_take_turns(uri: str, backend: Backend) -> None:
    narrow = open_backend(with_options(uri, "channels=1"))

    def work(number: int) -> None:
        for id in range(5):
            narrow.write_objects("realm", [ObjectRow(number * 10 + id, 0, b"x")])

    in_threads(48, work)
    keys = [ObjectKey(number * 10 + id) for number in range(48) for id in range(5)]
    assert len(backend.read_objects("realm", keys)) == 240
    narrow.close()


_FORKING = """
import os, sys
from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow
from polaris_spark.errors import StateError
import polaris_spark.backends.bigtable  # the libraries are there before the fork, as in a Python worker's parent

def use(id):
    backend = open_backend(sys.argv[1])
    backend.write_objects("realm", [ObjectRow(id, 0, b"x")])
    assert backend.read_objects("realm", [ObjectKey(id)])
    return backend

def child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def refused(backend):
    for call in (lambda: backend.read_reference("realm", "name"), lambda: use(9)):
        try:
            call()
        except StateError as error:
            assert "forked" in str(error)
        else:
            raise AssertionError("not refused")
    backend.close()

for id in (1, 2):
    child(lambda: use(id).close())
backend = use(3)
child(lambda: refused(backend))
assert len(backend.read_objects("realm", [ObjectKey(id) for id in (1, 2, 3, 9)])) == 3
backend.close()
"""


def test_a_forked_child_can_open_a_store_but_cannot_use_its_parents(uri: str, backend: Backend) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKING, uri], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


_IMPORTING = """
import sys
from polaris_spark.backends import open_backend
backend = open_backend(sys.argv[1])
backend.setup()
backend.read_reference("realm", "name")
assert "grpc" in sys.modules
print(*(name for name in ("google.cloud.bigtable", "google.cloud.bigtable_admin_v2") if name in sys.modules))
"""


def test_an_existing_store_is_used_without_importing_the_admin_libraries(uri: str, backend: Backend) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTING, uri], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == ""
