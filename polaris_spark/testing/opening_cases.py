"""Test cases of the storage contract for opening, setting up and closing a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectKey, ObjectRow
from polaris_spark.errors import InputError, NoStoreError, StateError, StoreURIError
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.processes import in_processes, in_threads, rows, set_up_store
from polaris_spark.testing.stores import StoreCases, row, with_options


class OpeningCases(StoreCases):
    """Test cases for opening, setting up and closing a store."""

    bad_uris: ClassVar[Sequence[tuple[str, str]]] = ()
    """Pairs of a store URI with a mistake, which `open_backend` must refuse, and a regular expression for the message.
    A password in these URIs is `correct-horse`; no message may contain it."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "bad_uri" in metafunc.fixturenames:
            metafunc.parametrize(("bad_uri", "words"), self.bad_uris)

    def test_a_bad_uri_is_refused_without_showing_its_password(self, bad_uri: str, words: str) -> None:
        with pytest.raises(StoreURIError, match=words) as caught:
            open_backend(bad_uri)
        assert "correct-horse" not in f"{caught.value!s} {caught.value!r}"

    def test_the_uri_has_a_host_if_other_machines_can_open_the_store(self, uri: str) -> None:
        """If the URI has no host, the database's entry in `polaris_spark.databases` must declare another `address`."""
        backend = open_backend(uri)
        assert (backend.scope == "cluster") == (StoreURI.parse(uri).address == "host")
        backend.close()

    def test_setup_may_be_repeated_and_raced(self, uri: str) -> None:
        def set_up(number: int) -> None:
            backend = open_backend(uri)
            backend.setup()
            backend.setup()
            backend.write_objects("realm", [ObjectRow(number, 0, b"x")])
            backend.close()

        in_threads(4, set_up)
        backend = open_backend(uri)
        assert len(backend.read_objects("realm", [ObjectKey(n) for n in range(4)])) == 4
        backend.close()

    def test_processes_may_set_up_the_same_store_at_once(self, uri: str) -> None:
        backend = open_backend(uri)
        if backend.scope in ("machine", "cluster"):
            in_processes(set_up_store, [(uri, number) for number in range(4)])
            assert len(backend.read_objects("realm", [ObjectKey(n) for n in range(4)])) == 4
            assert backend.read_reference("realm", "name 3") is not None
        backend.close()

    def test_setup_leaves_the_rows_of_a_store_alone(self, uri: str, backend: Backend) -> None:
        backend.insert_reference("realm", "name", current := row())
        backend.write_objects("realm", [ObjectRow(1, 0, b"x")])
        other = open_backend(uri)
        other.setup()
        backend.setup()
        assert other.read_reference("realm", "name") == backend.read_reference("realm", "name") == current
        assert len(rows(other, other.splits("objects", None, 2))) == 1
        other.close()

    def test_a_store_that_was_never_set_up_is_empty_or_refused(self, uri: str) -> None:
        backend = open_backend(uri)
        try:
            assert backend.read_reference("realm", "name") is None
            assert backend.read_objects("realm", [ObjectKey(1)]) == {}
        except NoStoreError:
            with pytest.raises(NoStoreError):
                backend.insert_reference("realm", "name", row())
        backend.close()

    def test_a_closed_backend_refuses_and_may_be_closed_again(self, uri: str) -> None:
        backend = open_backend(uri)
        backend.setup()
        backend.read_reference("realm", "name")
        backend.close()
        backend.close()
        with pytest.raises(StateError):
            backend.read_reference("realm", "name")
        with pytest.raises(StateError):
            backend.write_objects("realm", [ObjectRow(1, 0, b"")])
        with pytest.raises(StateError):
            backend.insert_reference("realm", "name", row())
        with pytest.raises(StateError):
            backend.read_objects("realm", [ObjectKey(1)])
        with pytest.raises(StateError):
            backend.delete_objects("realm", [ObjectKey(1)])
        with pytest.raises(StateError):
            backend.swap_reference("realm", "name", b"version", row())
        with pytest.raises(StateError):
            backend.delete_reference("realm", "name", b"version")
        with pytest.raises(StateError):
            rows(backend, backend.splits("objects", None, 1))

    def test_closing_one_backend_leaves_others_of_the_store_open(self, uri: str, backend: Backend) -> None:
        backend.insert_reference("realm", "name", current := row())
        other = open_backend(uri)
        assert other.read_reference("realm", "name") == current
        other.close()
        assert backend.read_reference("realm", "name") == current

    def test_an_unknown_option_is_refused_by_name(self, uri: str) -> None:
        with pytest.raises(StoreURIError, match="no_such_option"):
            open_backend(with_options(uri, "no_such_option=1")).setup()
        with pytest.raises(InputError, match="no_such_option"):
            open_backend(uri, {"no_such_option": "1"}).setup()
