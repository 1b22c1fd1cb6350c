"""Rows that a newer release wrote: a clear error, and nothing is lost."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import ObjectKey, ObjectRow, ReferenceRow
from polaris_spark.catalog.rows import known_kind
from polaris_spark.errors import NewerFormatError
from polaris_spark.index.keys import entry_key
from polaris_spark.store.cache import process_cache
from polaris_spark.store.references import new_version
from polaris_spark.store_uris import StoreURI
from tests.cli.catalogs import make_catalog, run
from tests.rest.client import Client, connect
from tests.stores import StoreOn, databases

_PREAMBLE = struct.Struct(">BHI")  # format, parts, length of the header

EVERY = ("--no-spark", "--no-dry-run", "--property", "idempotency-key-lifetime=0s")


@pytest.fixture(params=databases(["sqlite", "postgresql"]))
def store(request: pytest.FixtureRequest, store_on: StoreOn, tmp_path: Path) -> str:
    """A store with a small catalog."""
    return make_catalog(tmp_path, store_on(request.param))


def client_of(store: str, tmp_path: Path) -> Client:
    """Open the catalog of `store`."""
    return connect(store, tmp_path / "warehouse")


def change_objects(store: str, type: str, change: Callable[[list[Any], list[Any]], None]) -> set[int]:
    """Change the header and the payload of all objects of a type, and return their ids."""
    backend = open_backend(StoreURI.parse(store), {})
    changed = set()
    for split in list(backend.splits("objects", None, 1)):
        for row in [row for batch in backend.scan(split) for row in batch.to_pylist()]:
            format, parts, length = _PREAMBLE.unpack_from(row["value"])
            end = _PREAMBLE.size + length
            header = msgspec.msgpack.decode(row["value"][_PREAMBLE.size : end])
            if header[0] != type:
                continue
            payload = msgspec.msgpack.decode(row["value"][end:])
            change(header, payload)
            encoded = msgspec.msgpack.encode(header)
            value = _PREAMBLE.pack(format, parts, len(encoded)) + encoded + msgspec.msgpack.encode(payload)
            backend.delete_objects(row["realm"], [ObjectKey(row["id"])])
            backend.write_objects(row["realm"], [ObjectRow(row["id"], 0, value)])
            changed.add(row["id"])
    backend.close()
    process_cache().clear()
    assert changed
    return changed


def ids_of(store: str) -> set[int]:
    """Return the ids of all objects of a store."""
    backend = open_backend(StoreURI.parse(store), {})
    splits = backend.splits("objects", None, 1)
    found = {id for split in splits for batch in backend.scan(split) for id in batch.column("id").to_pylist()}
    backend.close()
    return found


def append_field(header: list[Any], payload: list[Any]) -> None:
    """Make an object one of a newer revision, which has one more field."""
    header[1] = 100
    payload.append("new field")


def test_an_object_of_a_newer_revision_is_read_but_neither_changed_nor_reason_to_delete_a_file(
    store: str, tmp_path: Path
) -> None:
    change_objects(store, "table", append_field)
    client = client_of(store, tmp_path)
    before = client.load("t")
    refused = client.commit("t", {"action": "set-properties", "updates": {"a": "b"}})
    assert refused.status == 400
    assert "use a release that supports revision 100" in refused.error["message"]
    assert client.load("t") == before
    run_jobs(store, tmp_path, "use a release that supports revision 100")
    assert client.load("t") == before
    client.session.close()


def test_an_object_of_an_unknown_type_is_kept_and_not_reason_to_delete_a_file(
    store: str, tmp_path: Path
) -> None:
    client = client_of(store, tmp_path)
    before = client.load("t")
    change_objects(store, "table", lambda header, _: header.__setitem__(0, "tablet"))
    refused = client.send("GET", "v1/namespaces/db/tables/t")
    assert refused.status == 500
    assert "has type 'tablet', which is not installed here" in refused.error["message"]
    assert "install the release or package that wrote it" in refused.error["message"]
    client.namespace("other")  # everything else works
    run_jobs(store, tmp_path, "which is not installed here")
    change_objects(store, "tablet", lambda header, _: header.__setitem__(0, "table"))
    assert client.load("t") == before
    client.session.close()


def run_jobs(store: str, tmp_path: Path, why: str) -> None:
    """Run the jobs that delete files, which must refuse, and a sweep of all rows that are not needed."""
    orphan = tmp_path / "warehouse" / "db" / "t" / "data" / "orphan.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_text("perhaps the newer release needs it")
    answer = run("maintain", "remove-orphans", store, *EVERY[:2], "--older-than", "0s", "--force")
    assert (answer.code, why in answer.err) == (2, True), answer
    assert orphan.exists()
    answer = run("maintain", "expire", store, *EVERY[:2], "--table", "db.t", "--json")
    assert (answer.code, why in answer.out + answer.err) == (0, True), answer
    answer = run("maintain", "sweep", store, *EVERY, "--retention", "0s", "--grace", "0s")
    assert (answer.code, "commit" in answer.out) == (0, True), answer
    process_cache().clear()


def test_a_reference_whose_row_has_an_unknown_field_is_refused_and_not_changed(
    store: str, tmp_path: Path
) -> None:
    backend = open_backend(StoreURI.parse(store), {})
    for split in list(backend.splits("references", None, 1)):
        for row in [row for batch in backend.scan(split) for row in batch.to_pylist()]:
            if "/heads/main" in row["name"]:
                value = msgspec.msgpack.encode([*msgspec.msgpack.decode(row["value"]), "new field"])
                planted = ReferenceRow(new_version(), value)
                backend.swap_reference(row["realm"], row["name"], row["version"], planted)
                at = (row["realm"], row["name"])
    objects = ids_of(store)
    with pytest.raises(NewerFormatError, match="has fields that this release does not know"):
        client_of(store, tmp_path).load("t")
    for job in ("sweep", "remove-orphans", "expire"):
        answer = run("maintain", job, store, "--no-spark", "--no-dry-run")
        assert answer.code == 2, answer
        assert "install the release that wrote it" in answer.err
    assert backend.read_reference(*at) == planted
    assert objects <= ids_of(store)
    backend.close()


def test_an_entity_of_an_unknown_kind_is_refused_by_jobs_that_delete_files() -> None:
    assert known_kind(entry_key(("db",), b"t", "t")) == b"t"
    with pytest.raises(NewerFormatError, match=r"db\.f is of a kind b'f' that this release does not know"):
        known_kind(entry_key(("db",), b"f", "f"))
