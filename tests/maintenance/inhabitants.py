"""Processes that use a catalog during its maintenance: `python -m tests.maintenance.inhabitants ROLE ...`.

Each process writes a journal, with one line of JSON for each acknowledged action. It ends when the file `stop` exists.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.commits.change import Operation
from polaris_spark.errors import (
    AlreadyExistsError,
    NotFoundError,
    OutcomeUnknownError,
    PolarisError,
    TryAgainError,
)
from polaris_spark.jobs.registry import call
from polaris_spark.pyiceberg import PolarisCatalog

NAMESPACES = ("a", "b")
TABLES = 6
SHORT = {"grace": "3 s", "idempotency-key-lifetime": "1 s", "history-retention": "4 s"}
"""All periods are seconds, so that maintenance and commits often run at the same time."""
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "writer", StringType(), required=False)
)

_MOVED = (CommitFailedException, NoSuchTableError, NoSuchNamespaceError, TableAlreadyExistsError)
"""Errors that mean that another process was faster."""
_BUSY = (ServiceUnavailableError, ServerError, CommitStateUnknownException)
"""Errors that mean that nothing was changed, or that the outcome is unknown."""


class Inhabitant:
    """A process that uses the catalog, and its journal."""

    def __init__(self, role: str, uri: str, folder: str, seed: str) -> None:
        self.rng = random.Random(f"{role}{seed}")
        self.folder = Path(folder)
        self.uri = uri
        self.name = f"{role}-{seed}"
        self.catalog = opened(uri, folder)
        self.journal = (self.folder / f"journal-{self.name}").open("a", buffering=1)

    def run(self, act: Callable[[], None]) -> None:
        """Call `act` until the file `stop` exists."""
        while not (self.folder / "stop").exists():
            try:
                act()
            except _MOVED:
                continue
            except _BUSY as error:
                self.tell("busy", str(error)[:200])
        self.catalog.close()
        self.tell("ended")

    def tell(self, what: str, *facts: Any) -> None:
        """Write a line to the journal."""
        self.journal.write(json.dumps([what, *facts]) + "\n")

    def table(self) -> Any:
        """Any table of the catalog."""
        namespace = self.rng.choice(NAMESPACES)
        names = self.catalog.list_tables(namespace)
        if not names:
            raise NoSuchTableError(namespace)
        return self.catalog.load_table(self.rng.choice(names))

    # Roles

    def writer(self) -> Callable[[], None]:
        """Appends rows to tables, and sometimes reads one of its rows."""
        numbers = iter(range(10**9))

        def act() -> None:
            table, id = self.table(), next(numbers)
            seen = table.metadata.current_snapshot_id
            try:
                table.append(pa.table({"id": [id], "writer": [self.name]}))
            except FileNotFoundError:
                if table.refresh().metadata.current_snapshot_id == seen:
                    raise
                return  # the snapshot that it was to stand on expired meanwhile
            self.tell("row", str(table.metadata.table_uuid), id)
            if self.rng.random() < 0.1:
                with contextlib.suppress(FileNotFoundError):  # a snapshot that expired while it was read
                    table.scan().to_arrow()

        return act

    def mover(self) -> Callable[[], None]:
        """Renames tables, changes properties, drops tables, restores some of them, and creates new ones."""
        numbers = iter(range(10**9))

        def act() -> None:
            table, dice = self.table(), self.rng.random()
            name = (self.rng.choice(NAMESPACES), f"t{next(numbers)}")
            if dice < 0.4:
                self.catalog.rename_table(table.name(), name)
            elif dice < 0.6:
                with table.transaction() as change:
                    change.set_properties(colour=str(dice))
            else:
                self.catalog.create_table(name, SCHEMA)
                self.tell("drops", str(table.metadata.table_uuid))
                self.catalog.drop_table(table.name())
                if self.rng.random() < 0.5:
                    time.sleep(self.rng.random())  # jobs meet the dropped table
                    with contextlib.suppress(NotFoundError, TryAgainError, OutcomeUnknownError):
                        call(self.catalog._opened, "undrop", table=".".join(table.name()))
                        self.tell("restores", str(table.metadata.table_uuid))
            time.sleep(0.05)

        return act

    def brancher(self) -> Callable[[], None]:
        """Creates branches of the catalog, changes them, drops them, and restores some of them."""
        session = self.catalog._opened
        references, row = session.catalog.references, session.catalog.row
        numbers = iter(range(10**9))

        def act() -> None:
            name = f"branch{next(numbers) % 3}"
            reference, operation = head_name(row, name), Operation(b"", self.name)
            with contextlib.suppress(NotFoundError, AlreadyExistsError, PolarisError):
                references.create(reference, operation, source=session.catalog.head())
            with contextlib.suppress(*_MOVED, *_BUSY, PolarisError):
                branch = opened(self.uri, str(self.folder), branch=name)
                try:
                    with contextlib.suppress(NamespaceAlreadyExistsError):
                        branch.create_namespace(f"only{name}")
                    names = branch.list_tables(self.rng.choice(NAMESPACES))
                    for table in names[:2]:
                        branch.load_table(table).scan().to_arrow()
                        self.tell("read on a branch")
                finally:
                    branch.close()
            with contextlib.suppress(PolarisError):
                references.drop(reference, operation)
                if self.rng.random() < 0.3:
                    references.undrop(reference, operation)
                    self.tell("undropped", reference)
            time.sleep(0.1)

        return act


def opened(uri: str, folder: str, **more: str) -> PolarisCatalog:
    """Open the catalog with the short periods."""
    return PolarisCatalog("polaris", store=uri, warehouse=f"{folder}/warehouse", **SHORT, **more)


def journal(folder: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield the events of all journals, with the process's name. The last line of a journal may be incomplete."""
    for path in sorted(folder.glob("journal-*")):
        for line in path.read_text().split("\n")[:-1]:
            yield path.name.removeprefix("journal-"), json.loads(line)


def main(role: str, *arguments: str) -> None:
    inhabitant = Inhabitant(role, *arguments)
    try:
        inhabitant.run(getattr(inhabitant, role)())
    except BaseException:
        inhabitant.tell("failed", traceback.format_exc())
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
