"""Test cases of the storage contract for actions of an administrator: the store is dropped, or other tables are created
in its place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import ClassVar

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend, ObjectRow, Table
from polaris_spark.errors import NewerFormatError, NoStoreError, PolarisError, StoreURIError
from polaris_spark.testing.stores import TABLES, StoreCases, row


class StoreAdmin(ABC):
    """The administrator of a database or directory, who changes a store without its backend."""

    refusal: ClassVar[type[PolarisError] | tuple[type[PolarisError], ...]] = StoreURIError
    """Error (or errors) of a backend that finds the tables of another program."""
    unreadable: ClassVar[Mapping[Table, str]] = dict.fromkeys(TABLES, "another program")
    """Regular expression for the message of a read that finds this table of another program."""
    foreign: ClassVar[str] = "another program"
    """Regular expression for the message of a `setup` that finds a table of another program."""
    dropped: ClassVar[type[PolarisError] | tuple[type[PolarisError], ...]] = NoStoreError
    """Error (or errors) of a backend that was open when its store was dropped."""
    dropped_message: ClassVar[str] = "does not contain a store"
    """Regular expression for the message of these errors."""
    checks_first: ClassVar[bool] = True
    """Whether `setup` creates no table if it finds the tables of another program. Otherwise it may create the tables
    that are missing before it reports the others."""

    @abstractmethod
    def contents(self) -> Mapping[str, object] | None:
        """Return all tables of the store and their rows, by the name of the table, or all its files. Return None if the
        database, schema, keyspace or file that contains only this store does not exist."""

    @abstractmethod
    def create_foreign_table(self, table: Table) -> None:
        """Create a table that has the name of one of the store's tables but other columns; for a store in files, create
        a file with the name of one of its files. The store does not exist yet. If possible, insert a row into the
        table."""

    def drop(self) -> None:
        """Delete the tables of the store, with all rows.

        Raises:
            NotImplementedError: this database creates missing tables when a row is inserted. So an open backend does
                not find out that they were deleted.
        """
        raise NotImplementedError

    def set_newer_format(self) -> None:
        """Mark the existing store as one of format 2.

        Raises:
            NotImplementedError: the stores of this database have no format version.
        """
        raise NotImplementedError


class AdminCases(StoreCases):
    """Test cases for changes by an administrator. A subclass defines the fixture `store_admin`."""

    @pytest.fixture
    def store_admin(self, uri: str) -> StoreAdmin:
        """The administrator of the store `uri`."""
        raise NotImplementedError("the test class must define the fixture 'store_admin'")

    def test_a_database_that_was_never_set_up_is_not_a_store(self, uri: str, store_admin: StoreAdmin) -> None:
        before = store_admin.contents()
        uses: list[Callable[[Backend], object]] = [
            lambda backend: backend.read_reference("realm", "name"),
            lambda backend: backend.insert_reference("realm", "name", row()),
            lambda backend: backend.write_objects("realm", [ObjectRow(1, 0, b"x")]),
        ]
        for use in uses:
            with (
                closing(open_backend(uri)) as backend,
                pytest.raises(NoStoreError, match=r"does not contain a store.*create=true"),
            ):
                use(backend)
        assert store_admin.contents() == before

    def test_a_store_that_is_dropped_while_it_is_open_is_reported(
        self, backend: Backend, store_admin: StoreAdmin
    ) -> None:
        backend.insert_reference("realm", "name", row())
        backend.read_reference("realm", "name")
        try:
            store_admin.drop()
        except NotImplementedError:
            pytest.skip("this database creates missing tables when a row is inserted")
        with pytest.raises(store_admin.dropped, match=store_admin.dropped_message):
            backend.insert_reference("realm", "name", row())

    @pytest.mark.parametrize("table", TABLES)
    def test_tables_of_other_programs_are_refused_and_not_changed(
        self, uri: str, store_admin: StoreAdmin, table: Table
    ) -> None:
        store_admin.create_foreign_table(table)
        before = store_admin.contents()
        with (
            closing(open_backend(uri)) as backend,
            pytest.raises(store_admin.refusal, match=store_admin.unreadable[table]),
        ):
            backend.read_reference("realm", "name")
        with (
            closing(open_backend(uri)) as backend,
            pytest.raises(store_admin.refusal, match=store_admin.foreign),
        ):
            backend.setup()
        after = store_admin.contents()
        assert before
        assert after
        if store_admin.checks_first:
            assert after == before
        else:
            assert {name: after[name] for name in before} == before

    def test_a_store_of_a_newer_release_is_refused_and_not_changed(
        self, uri: str, backend: Backend, store_admin: StoreAdmin
    ) -> None:
        backend.insert_reference("realm", "name", row())
        backend.close()
        try:
            store_admin.set_newer_format()
        except NotImplementedError:
            pytest.skip("the stores of this database have no format version")
        before = store_admin.contents()
        with (
            closing(open_backend(uri)) as other,
            pytest.raises(NewerFormatError, match=r"format \D*2\b"),
        ):
            other.read_reference("realm", "name")
        with closing(open_backend(uri)) as other:
            with pytest.raises(NewerFormatError, match=r"format \D*2\b"):
                other.setup()
            with pytest.raises(NewerFormatError, match=r"format \D*2\b"):
                other.insert_reference("realm", "name", row())
        assert store_admin.contents() == before
