"""Behavior of object stores: tombstones, keys, options, and refusals."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, Conflict, ObjectKey, ObjectRow, ReferenceRow, Swapped
from polaris_spark.backends.objectstore import ObjectStoreBackend, keys
from polaris_spark.backends.objectstore.cloud import CloudRequests
from polaris_spark.backends.objectstore.requests import Mark, Requests
from polaris_spark.backends.objectstore.settings import Settings
from polaris_spark.errors import (
    CorruptionError,
    InputError,
    OutcomeUnknownError,
    StateError,
    StoreURIError,
    TryAgainError,
)
from polaris_spark.store_uris import Secret, StoreURI
from polaris_spark.testing.processes import exit_status, in_processes
from polaris_spark.testing.server import ReservedPort
from polaris_spark.testing.stores import HOSTILE_NAMES, row
from tests.servers.versitygw import VersityGateway


def requests_of(uri: str) -> Requests:
    """A client of the backend's bucket, to inspect what the backend stored."""
    parsed = StoreURI.parse(uri)
    assert parsed.password is not None
    return CloudRequests(Settings.parse(parsed, {**parsed.options, "password": parsed.password}))


@pytest.fixture
def backend(s3_uri: str) -> Iterator[ObjectStoreBackend]:
    backend = open_backend(s3_uri)
    backend.setup()
    assert isinstance(backend, ObjectStoreBackend)
    yield backend
    backend.close()


def test_a_deleted_reference_leaves_a_tombstone_until_its_realm_is_dropped(
    backend: ObjectStoreBackend, s3_uri: str
) -> None:
    requests = requests_of(s3_uri)
    key = keys.reference_key("realm", "name")
    first = row()
    backend.insert_reference("realm", "name", first)
    assert backend.delete_reference("realm", "name", first.version) == Swapped()
    stored = requests.get(key)
    assert stored is not None
    assert keys.decode_reference(stored[0], key).row is None
    assert requests.put_if(key, b"a delayed insert", None) is None
    second = row()
    assert backend.insert_reference("realm", "name", second) == Swapped()
    assert backend.delete_reference("realm", "name", second.version) == Swapped()
    again = requests.get(key)
    assert again is not None
    assert again[1] != stored[1], "two tombstones of one key have the same ETag"
    assert requests.put_if(key, b"a delayed insert over the first tombstone", stored[1]) is None
    backend.drop_realm("realm")
    assert requests.get(key) is None


def test_repeating_an_insert_or_swap_that_took_effect_reports_success(backend: ObjectStoreBackend) -> None:
    first, second = row(b"first"), row(b"second")
    assert backend.insert_reference("realm", "name", first) == Swapped()
    assert backend.insert_reference("realm", "name", first) == Swapped()
    assert backend.swap_reference("realm", "name", first.version, second) == Swapped()
    assert backend.swap_reference("realm", "name", first.version, second) == Swapped()
    assert backend.read_reference("realm", "name") == second


def test_a_delete_that_took_effect_but_was_refused_is_reported(
    backend: ObjectStoreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.insert_reference("realm", "name", first := row())
    put = backend._requests.put_if

    def sent_twice(key: str, body: bytes, mark: Mark | None) -> Mark | None:
        put(key, body, mark)
        return put(key, body, mark)

    monkeypatch.setattr(backend._requests, "put_if", sent_twice)
    assert backend.delete_reference("realm", "name", first.version) == Swapped()
    assert backend.delete_reference("realm", "name", first.version) == Conflict(None)
    assert backend.insert_reference("realm", "name", second := row()) == Swapped()
    assert backend.swap_reference("realm", "name", second.version, row()) == Swapped()


def test_no_name_acts_as_a_wildcard(backend: ObjectStoreBackend) -> None:
    backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
    for use in (
        lambda: backend.drop_realm(""),
        lambda: backend.splits("objects", [""], 2),
        lambda: backend.read_objects("", [ObjectKey(1)]),
        lambda: backend.delete_objects("", [ObjectKey(1)]),
        lambda: backend.read_reference("", "name"),
    ):
        with pytest.raises(InputError, match="empty"):
            use()
    assert backend.read_objects("realm", [ObjectKey(1)]) == {ObjectKey(1): b"x"}


def test_a_remembered_mark_never_decides(backend: ObjectStoreBackend, s3_uri: str) -> None:
    other = open_backend(s3_uri)
    first, second, third = row(), row(), row()
    backend.insert_reference("realm", "name", first)
    assert other.swap_reference("realm", "name", first.version, second) == Swapped()
    assert backend.swap_reference("realm", "name", first.version, third) == Conflict(second)
    assert backend.swap_reference("realm", "name", second.version, third) == Swapped()
    assert other.delete_reference("realm", "name", third.version) == Swapped()
    assert backend.swap_reference("realm", "name", third.version, row()) == Conflict(None)
    other.close()


def test_keys_spread_ids_that_grow_and_fit_every_store() -> None:
    spread = Counter(keys.object_key("realm", ObjectKey(id))[:17] for id in range(10**15, 10**15 + 25_600))
    assert len(spread) == 256
    assert max(spread.values()) < 2 * 100
    for name in HOSTILE_NAMES:
        key = keys.reference_key(name, name)
        assert key.isascii()
        assert len(key) <= 300
        assert all(1 <= len(part) <= 255 and part not in (".", "..") for part in key.split("/"))
        listed = keys.listed(keys.object_key(keys.segment(name), ObjectKey(2**63 - 1, 7)))
        assert listed.realm in (name, None)
        assert listed[1:] == (2**63 - 1, 7)


def test_objects_that_are_not_ours_are_named(backend: ObjectStoreBackend, s3_uri: str) -> None:
    requests = requests_of(s3_uri)
    requests.put(keys.reference_key("realm", "name"), b"something else")
    with pytest.raises(CorruptionError, match="references/realm"):
        backend.read_reference("realm", "name")
    requests.put("objects/realm/notes.txt", b"something else")
    with pytest.raises(CorruptionError, match=r"notes\.txt"):
        list(backend.scan(backend.splits("objects", ["realm"], 1)[0]))


def test_a_missing_bucket_is_named(s3_uri: str) -> None:
    with closing(open_backend(s3_uri.replace("@catalogs/", "@nobody-made-this/"))) as backend:
        for use in (backend.setup, lambda: backend.read_objects("realm", [ObjectKey(1)])):
            with pytest.raises(StateError, match=r"nobody-made-this.*create the bucket"):
                use()
        with pytest.raises(StateError, match="create the bucket"):
            backend.swap_reference("realm", "name", b"version", row())
        with pytest.raises(StateError, match="create the bucket"):
            backend.splits("objects", None, 2)


@pytest.mark.parametrize("wrong", ["user", "secret"])
def test_wrong_credentials_are_reported_without_showing_them(versitygw: VersityGateway, wrong: str) -> None:
    uri = versitygw.uri("prefix").replace(getattr(versitygw, wrong), "no-such-thing-at-all")
    with closing(open_backend(uri)) as backend:
        uses = (
            backend.setup,
            lambda: backend.read_objects("realm", [ObjectKey(1)]),
            lambda: backend.write_objects("realm", [ObjectRow(1, 0, b"")]),
            lambda: backend.insert_reference("realm", "name", row()),
        )
        for use in uses:
            with pytest.raises(StateError, match="check the access key") as caught:
                use()
            assert "no-such-thing" not in str(caught.value)
            assert versitygw.secret not in str(caught.value)


def test_a_read_only_user_can_read_and_gets_an_error_on_a_write(versitygw: VersityGateway) -> None:
    stranger = StoreURI.parse(versitygw.unprivileged("only_read"))
    everything = "arn:aws:s3:::catalogs"
    policy = {
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"AWS": [stranger.user]},
                "Action": ["s3:GetObject", "s3:ListBucket"],
                "Resource": [everything, f"{everything}/only_read/*"],
            }
        ]
    }
    owner = boto3.client(
        "s3",
        endpoint_url=versitygw.endpoint,
        region_name="us-east-1",
        aws_access_key_id=versitygw.user,
        aws_secret_access_key=versitygw.secret,
    )
    with closing(open_backend(versitygw.uri("only_read"))) as backend:
        backend.setup()
        backend.insert_reference("realm", "name", first := row())
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
    owner.put_bucket_policy(Bucket="catalogs", Policy=json.dumps(policy))
    try:
        with closing(open_backend(versitygw.unprivileged("only_read"))) as backend:
            assert backend.read_reference("realm", "name") == first
            assert backend.read_objects("realm", [ObjectKey(1), ObjectKey(2)]) == {ObjectKey(1): b"x"}
            assert len(backend.splits("objects", None, 2)) == 1
            for write in (
                lambda: backend.write_objects("realm", [ObjectRow(2, 0, b"y")]),
                lambda: backend.swap_reference("realm", "name", first.version, row()),
                lambda: backend.insert_reference("realm", "other", row()),
                lambda: backend.delete_objects("realm", [ObjectKey(1)]),
            ):
                with pytest.raises(StateError, match="its permissions to get, put, list and delete"):
                    write()
    finally:
        owner.delete_bucket_policy(Bucket="catalogs")


def test_an_unreachable_server_changes_nothing() -> None:
    nobody = "s3://user:secret@bucket/prefix?endpoint=http://127.0.0.1:{}&region=r&timeout=600ms"
    with ReservedPort() as port, closing(open_backend(nobody.format(port.number))) as backend:
        with pytest.raises(TryAgainError, match="cannot be reached"):
            backend.read_reference("realm", "name")
        with pytest.raises(TryAgainError, match="nothing was changed"):
            backend.insert_reference("realm", "name", row())


def test_the_secret_can_be_given_separately_from_the_uri(versitygw: VersityGateway) -> None:
    uri = versitygw.uri("apart").replace(f":{versitygw.secret}@", "@")
    backend = open_backend(uri, {"password": Secret(versitygw.secret)})
    backend.setup()
    assert backend.read_reference("realm", "name") is None
    backend.close()


def test_stores_behind_other_endpoints_are_other_stores() -> None:
    first = StoreURI.parse("s3://bucket/prefix?endpoint=http://a:1&region=x")
    assert first.key != StoreURI.parse("s3://bucket/prefix?endpoint=http://b:1&region=x").key
    assert first.key == StoreURI.parse("s3://user:pw@bucket/prefix?endpoint=http://a:1&timeout=5s").key


def test_a_forked_child_is_refused_by_name(backend: ObjectStoreBackend) -> None:
    backend.read_reference("realm", "name")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            backend.read_reference("realm", "name")
        except StateError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    exit_status(child)
    assert b"forked" in os.read(reading, 4_096)


def put_and_get(uri: str, process: int) -> list[bytes]:
    """Rows that a process writes and reads."""
    backend = open_backend(uri)
    backend.write_objects("realm", [ObjectRow(process, part, b"%d" % part) for part in range(50)])
    found = backend.read_objects("realm", [ObjectKey(process, part) for part in range(50)])
    backend.close()
    return [found[ObjectKey(process, part)] for part in range(50)]


def test_more_rows_than_connections_are_written_and_read(s3_uri: str, backend: ObjectStoreBackend) -> None:
    few = f"{s3_uri}&connections=2"
    assert in_processes(put_and_get, [(few, 1), (few, 2)]) == [[b"%d" % part for part in range(50)]] * 2


class Careless(BaseHTTPRequestHandler):
    """A server of objects in a dictionary that ignores the conditions of requests."""

    stored: dict[str, bytes]
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:  # http.server's own names
        self.stored[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_POST(self) -> None:  # as above
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"<DeleteResult></DeleteResult>")

    def do_GET(self) -> None:  # as above
        found = self.stored.get(self.path)
        self._answer(*((404, b"<Error><Code>NoSuchKey</Code></Error>") if found is None else (200, found)))

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"same"')
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def served(handler: type[Careless]) -> Iterator[Backend]:
    """A store on a server that answers as `handler` does."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Server", (handler,), {"stored": {}}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    uri = f"s3://user:secret@bucket/prefix?endpoint=http://127.0.0.1:{server.server_port}&region=r"
    try:
        with closing(open_backend(uri)) as backend:
            yield backend
    finally:
        server.shutdown()
        server.server_close()


def test_a_store_that_ignores_conditions_is_refused() -> None:
    with (
        served(Careless) as backend,
        pytest.raises(StoreURIError, match="cannot hold a catalog: it replaced"),
    ):
        backend.setup()


class Changing(Careless):
    """A server whose objects change while they are read."""

    def do_GET(self) -> None:  # http.server's own name
        self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")


def test_an_object_that_changes_while_it_is_read_is_to_be_read_again() -> None:
    with served(Changing) as backend, pytest.raises(TryAgainError, match="reading"):
        backend.read_reference("realm", "name")


class Failing(Careless):
    """A server that answers a PUT with an error. The error quotes a failed connection of the server to another one."""

    def do_PUT(self) -> None:  # http.server's own name
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(500, b"replica: HttpError { kind: Connect }, GET http://169.254.169.254/")


def test_an_error_quoted_by_a_failing_server_does_not_make_the_outcome_certain() -> None:
    with served(Failing) as backend, pytest.raises(OutcomeUnknownError):
        backend.insert_reference("realm", "name", row())


def test_missing_credentials_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://169.254.169.254:1")  # answers on no machine
    with (
        closing(
            open_backend("s3://bucket/prefix?endpoint=http://127.0.0.1:1&region=r&timeout=300ms")
        ) as backend,
        pytest.raises(TryAgainError, match="no user and password are given"),
    ):
        backend.read_reference("realm", "name")


def test_versions_of_any_bytes_differ_from_no_version(backend: ObjectStoreBackend) -> None:
    backend.insert_reference("realm", "name", ReferenceRow(b"\xc0", b""))
    assert backend.read_reference("realm", "name") == ReferenceRow(b"\xc0", b"")
