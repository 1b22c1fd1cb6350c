"""Administrators of stores in local files, who change the files without a backend."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import ClassVar

from polaris_spark.backends.base import Table
from polaris_spark.errors import OutcomeUnknownError, StateError
from polaris_spark.store_uris import StoreURI
from polaris_spark.testing.admin_cases import StoreAdmin
from polaris_spark.testing.stores import TABLES


class SQLiteAdmin(StoreAdmin):
    dropped = (StateError, OutcomeUnknownError)
    dropped_message = "was removed or replaced"

    def __init__(self, uri: str) -> None:
        self._path = Path(StoreURI.parse(uri).path)

    def contents(self) -> dict[str, object] | None:
        if not self._path.exists():
            return None
        with closing(sqlite3.connect(self._path)) as connection:
            return {
                "statements": list(connection.iterdump()),
                "version": connection.execute("PRAGMA user_version").fetchone(),
            }

    def create_foreign_table(self, table: Table) -> None:
        self._execute(f'CREATE TABLE "{table}" (name text)', f"INSERT INTO \"{table}\" VALUES ('theirs')")

    def drop(self) -> None:
        for file in self._path.parent.glob(f"{self._path.name}*"):
            file.unlink()

    def set_newer_format(self) -> None:
        self._execute("PRAGMA user_version = 2")

    def _execute(self, *statements: str) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)


class FolderAdmin(StoreAdmin):
    """The administrator of a store that is a directory, with a file that contains its format."""

    unreadable: ClassVar[Mapping[Table, str]] = dict.fromkeys(TABLES, "does not contain a store")
    foreign = "other files"
    dropped = StateError
    dropped_message = "was removed or replaced"

    def __init__(self, uri: str, format: str) -> None:
        """
        Args:
            format: name of the file that contains the format.
        """
        self._path = Path(StoreURI.parse(uri).path)
        self._format = format

    def contents(self) -> dict[str, object] | None:
        if not self._path.exists():
            return None
        return {
            str(file.relative_to(self._path)): file.read_bytes()
            for file in self._path.rglob("*")
            if file.is_file()
        }

    def create_foreign_table(self, table: Table) -> None:
        (self._path / table).mkdir(parents=True)
        (self._path / table / "notes.txt").write_text("theirs")

    def drop(self) -> None:
        shutil.rmtree(self._path)

    def set_newer_format(self) -> None:
        (self._path / self._format).write_text("polaris_spark store, format 2\n")
