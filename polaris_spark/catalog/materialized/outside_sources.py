"""Tables and views outside of a catalog that its materialized views read: those of other catalogs of a Spark session,
Iceberg tables that are named by their location, and Delta tables.

An engine describes the first two as JSON (`Describe`; in Spark, `OutsideSources.java`). Delta tables are looked up
here, by the package `deltalake`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.errors import BadRequestError

METASTORE = "iceberg-metastore"
ICEBERG_LOCATION = "iceberg-filesystem"
DELTA_LOCATION = "deltalake-filesystem"
LOCATIONS = {"iceberg": ICEBERG_LOCATION, "delta": DELTA_LOCATION}
"""Type of a base table, as in the draft specification, by the word before its location in SQL, as in
`` iceberg.`/path/to/table` ``."""

Describe = Callable[[tuple[str, ...]], Json | None]
"""Returns what the engine knows about the table or view with a full name, catalog included:

- `type`: `table`; `view`; `other` for a table of another format than Iceberg; `none` if it does not exist;
- of a table: `uuid`, `current-schema-id`, `schemas`, `refs` (snapshot ids by name), `snapshots`, and those `properties`
that change what is read;
- of a view: `uuid`, `version-id`, `sql`, `catalog`, `namespace`, `schema`.

None if the answer is not known yet.
"""


class OutsideRef(NamedTuple):
    """A branch or tag of a table outside of the catalog."""

    snapshot_id: int


class OutsideTable:
    """The metadata of a table outside of the catalog. Its attributes have the same names as those of `TableDraft`."""

    def __init__(self, text: Json) -> None:
        self._text = text

    @property
    def uuid(self) -> str:
        return str(self._text["uuid"])

    @property
    def current_schema_id(self) -> int:
        return int(self._text["current-schema-id"])

    @cached_property
    def schemas(self) -> Mapping[int, Json]:
        return {one["schema-id"]: one for one in self._text["schemas"]}

    @cached_property
    def snapshots(self) -> Mapping[int, Json]:
        return {one["snapshot-id"]: one for one in self._text["snapshots"]}

    @property
    def properties(self) -> Mapping[str, str]:
        return self._text.get("properties") or {}

    @cached_property
    def refs(self) -> Mapping[str, OutsideRef]:
        return {name: OutsideRef(id) for name, id in self._text["refs"].items()}

    @property
    def current_snapshot_id(self) -> int | None:
        main = self.refs.get("main")
        return None if main is None else main.snapshot_id


TableState = TableDraft | OutsideTable
"""The metadata of a table of the catalog, or of one outside of it."""


class OutsideView(NamedTuple):
    """A view of another catalog."""

    uuid: str
    version_id: int
    sql: str
    catalog: str
    namespace: tuple[str, ...]
    columns: Mapping[str, Any]
    """The types of its columns in its Iceberg schema, by name."""


class UnknownSourceError(Exception):
    """The engine has not described the table or view with this full name."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        super().__init__(".".join(parts))
        self.parts = parts


class OutsideSources:
    """Looks up tables and views outside of the catalog. Each is looked up once, so that all uses see one state."""

    def __init__(self, describe: Describe | None = None, *, reads_delta: bool = False) -> None:
        """
        Args:
            describe: describes the tables and views that the engine knows; None if there is no engine.
            reads_delta: whether this process may open Delta tables at any location. A server must not: clients write
                the locations.
        """
        self._describe = describe
        self._reads_delta = reads_delta
        self._found: dict[tuple[str, ...], OutsideTable | OutsideView | None] = {}
        self._found_delta: dict[str, DeltaTable] = {}

    def find(self, parts: tuple[str, ...]) -> OutsideTable | OutsideView | None:
        """Return the table or view with a full name; None if it does not exist.

        Raises:
            BadRequestError: the name belongs to a table that is not an Iceberg table.
            UnknownSourceError: there is no engine, or it has not described the table or view.
        """
        if parts not in self._found:
            self._found[parts] = self._asked(parts)
        return self._found[parts]

    def delta(self, location: str) -> DeltaTable:
        """Return the current version of a Delta table.

        Raises:
            BadRequestError: the package `deltalake` is not installed, or the table cannot be read.
            UnknownSourceError: this process must not open it.
        """
        if not self._reads_delta:
            raise UnknownSourceError(("", "delta", location))
        if location not in self._found_delta:
            self._found_delta[location] = delta_table(location)
        return self._found_delta[location]

    def _asked(self, parts: tuple[str, ...]) -> OutsideTable | OutsideView | None:
        text = None if self._describe is None else self._describe(parts)
        if text is None:
            raise UnknownSourceError(parts)
        if text["type"] == "table":
            return OutsideTable(text)
        if text["type"] == "view":
            namespace = tuple(text["namespace"])
            columns = {one["name"]: one["type"] for one in text["schema"]["fields"]}
            return OutsideView(
                text["uuid"], text["version-id"], text["sql"], text["catalog"], namespace, columns
            )
        if text["type"] == "other":
            raise BadRequestError(
                f"{'.'.join(parts)} is not an Iceberg table or view; a materialized view can read only tables whose "
                "states can be compared: Iceberg tables, and Delta tables as delta.`/path`"
            )
        return None


class DeltaTable(NamedTuple):
    """The current version of a Delta table."""

    id: str
    version: int
    rows: int
    files: int
    size: int
    """Bytes of the data files."""


def delta_table(location: str) -> DeltaTable:
    """Return the current version of a Delta table. Credentials for object stores come from the environment.

    Args:
        location: absolute path or URI of the table's directory.
    Raises:
        BadRequestError: the package `deltalake` is not installed, or the table cannot be read.
    """
    try:
        import deltalake
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise BadRequestError(
            f"reading the Delta table {location} needs the package deltalake: pip install 'polaris-spark[delta]'"
        ) from None
    try:
        table = deltalake.DeltaTable(location)
        files = table.get_add_actions(flatten=True)
    except (DeltaError, OSError) as error:
        problem = str(error).partition("\n")[0]
        raise BadRequestError(f"the Delta table {location} cannot be read: {problem}") from error
    rows, sizes = (files.column(name).to_pylist() for name in ("num_records", "size_bytes"))
    return DeltaTable(
        str(table.metadata().id), table.version(), sum(one or 0 for one in rows), files.num_rows, sum(sizes)
    )
