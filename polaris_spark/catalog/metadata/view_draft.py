"""A view that is being changed. A draft starts with the values of the view's row. Updates change these values. Then
`freeze` returns a new row, and the new pieces: schemas, view versions and log items that are stored as separate
objects.

The rules are the same as in Iceberg's `ViewMetadata.Builder`; the individual updates are in `view_updates`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from polaris_spark.catalog.metadata import logs
from polaris_spark.catalog.metadata.bounds import require_properties_growth
from polaris_spark.catalog.metadata.change_details import bounded, column_details, property_details
from polaris_spark.catalog.metadata.pieces import NumberedPieces
from polaris_spark.catalog.metadata.rows import (
    EMPTY_VIEW,
    VIEW_FORMAT_VERSION,
    Log,
    NewId,
    NewRows,
    ObjectReader,
    Schema,
    View,
    ViewVersion,
    WithNew,
)
from polaris_spark.catalog.metadata.schemas import SchemaIndex, schema_form
from polaris_spark.catalog.metadata.texts import Json, invalid, parse_int
from polaris_spark.clock import CheckTime, unlimited
from polaris_spark.errors import BadRequestError

_SAME_VERSION = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")
_HISTORY_SIZE = "version.history.num-entries"
_HISTORY_SIZE_DEFAULT = 10
_PROPERTIES = frozenset({"set-properties", "remove-properties"})
_DROP_DIALECT = "replace.drop-dialect.allowed"


class _LogItem(msgspec.Struct, rename="kebab"):
    version_id: int


_decode_log = msgspec.json.Decoder(list[_LogItem]).decode


class ViewDraft:
    """A view with changes that are not yet written. The attributes are named like the fields of `View`."""

    __slots__ = (
        "_properties",
        "_start",
        "added_versions",
        "base",
        "changes",
        "check_time",
        "current_version_id",
        "extra",
        "format_version",
        "imported_log",
        "last_added_schema_id",
        "last_added_version_id",
        "location",
        "log_item",
        "now_ms",
        "origin",
        "reader",
        "schemas",
        "uuid",
        "versions",
    )

    def __init__(
        self, view: View | None, reader: ObjectReader, *, now_ms: int, check_time: CheckTime = unlimited
    ) -> None:
        """
        Args:
            view: the view in its current state; None for a new view.
            reader: reads the stored pieces of the view.
            now_ms: the time of the change, milliseconds since 1970 UTC.
            check_time: called at each step; raises an error to abort work that takes too long.
        """
        self.base = view
        self.reader = reader
        self.check_time = check_time
        self.now_ms = now_ms
        self._start = start = EMPTY_VIEW if view is None else view
        self.origin = "create"
        """Origin of a new view: `register` if it comes from a metadata file, otherwise `create`."""
        self.changes: list[tuple[str, Any]] = []
        """(action, detail) of each update that had an effect, in order; see `record`."""
        self.uuid = start.uuid
        self.format_version = start.format_version
        self.location = start.location
        self.current_version_id = start.current_version_id
        self.extra = start.extra
        self.schemas = NumberedPieces(Schema, start.schemas, reader, schema_form, check_time)
        self.versions = NumberedPieces(ViewVersion, start.versions, reader, version_form, check_time)
        self.added_versions: set[int] = set()
        self.last_added_version_id: int | None = None
        self.last_added_schema_id: int | None = None
        self.log_item: bytes | None = None
        """The new entry of the version log, as compact JSON; None if the current version has not changed."""
        self.imported_log: list[bytes] = []
        """Items of the version log in the parsed metadata file, as JSON; empty if no metadata file was parsed."""
        self._properties: dict[str, str] | None = None

    def record(self, action: str, detail: Any = None) -> None:
        """Record that an update had an effect. `detail` tells what it changed, such as an id."""
        self.changes.append((action, detail))

    @property
    def changed(self) -> bool:
        """Whether there is anything to write: an update had an effect, or the view is new."""
        return bool(self.changes) or self.base is None

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the view. To change them, use `own_properties`."""
        return self._start.properties if self._properties is None else self._properties

    def own_properties(self) -> dict[str, str]:
        """Return the properties as a dict. Changes to the dict change the draft."""
        if self._properties is None:
            self._properties = dict(self._start.properties)
        return self._properties

    def summary(self) -> dict[str, str]:
        """Return a description of the changes for the audit log. Call this before `freeze`.

        `updates` lists the distinct updates, joined by commas. The other items are described in `change_details`.
        """
        first = [self.origin] if self.base is None else []
        found = {"updates": ",".join((*first, *dict.fromkeys(action for action, _ in self.changes)))}
        if self.origin == "register":
            return found
        if self.current_version_id != self._start.current_version_id or self.base is None:
            found |= self._column_details()
        names = [name for action, detail in self.changes if action in _PROPERTIES for name in detail or ()]
        if self.base is None:
            names += self.properties
        details = property_details(self._start.properties, self.properties, names)
        if self.base is not None and self.location != self.base.location:
            details["location"] = self.location
        return found | bounded(details)

    def _column_details(self) -> dict[str, str]:
        after = _columns(self.versions, self.schemas, self.current_version_id)
        if after is None:
            return {}
        before = None
        if self.base is not None:
            versions = NumberedPieces(ViewVersion, self.base.versions, self.reader, version_form)
            schemas = NumberedPieces(Schema, self.base.schemas, self.reader, schema_form)
            before = _columns(versions, schemas, self.base.current_version_id)
        return bounded(column_details(before, after, by_name=True))

    def freeze(
        self, new_id: NewId, *, metadata_location: str, entity_id: int | None = None
    ) -> tuple[View, NewRows]:
        """Return the row of the view after the changes, and the new pieces. Call this only once.

        If there are more than `version.history.num-entries` (default 10) versions, the oldest versions are removed. The
        current version and the versions that this draft added are always kept. If a removed version has an entry in the
        version log, the entry and all earlier entries are removed.

        Args:
            new_id: returns a new object id at each call.
            metadata_location: location of the new version's metadata file.
            entity_id: entity id of a new view; None for a changed view, which keeps its id.
        Raises:
            BadRequestError: the result would not be valid metadata, or the new current version would lack an SQL
                dialect of the old one while `replace.drop-dialect.allowed` is not true.
        """
        if self.base is not None and not self.changes:
            return self.base, []
        self._validate()
        if self._properties is not None:
            require_properties_growth(self._start.properties, self._properties)
        self.check_time()
        rows: NewRows = []
        log = self._frozen_log(new_id, rows)
        start = self._start
        return View(
            entity_id=start.entity_id if entity_id is None else entity_id,
            uuid=self.uuid,
            format_version=self.format_version,
            location=self.location,
            current_version_id=self.current_version_id,
            properties=self.properties,
            schemas=self.schemas.freeze(new_id, rows),
            versions=self.versions.freeze(new_id, rows),
            version_log=log,
            metadata_location=metadata_location,
            extra=self.extra,
            unconfirmed=start.unconfirmed,
        ), rows

    def _validate(self) -> None:
        if not self.uuid:
            raise invalid("Invalid view uuid: null")
        if not self.location:
            raise invalid("Invalid location: null")
        if not len(self.versions):
            raise invalid("Invalid view: no versions were added")
        if not 1 <= self.format_version <= VIEW_FORMAT_VERSION:
            raise invalid(f"Unsupported format version: {self.format_version}")
        if self.current_version_id not in self.versions:
            raise invalid(
                f"Cannot find current version {self.current_version_id} in view versions: "
                f"{self.versions.ids()}"
            )
        if self.base is not None and self.current_version_id != self.base.current_version_id:
            self._check_dialects(self.base.current_version_id)

    def _check_dialects(self, previous_id: int) -> None:
        if self.properties.get(_DROP_DIALECT, "false").lower() == "true":
            return
        before, after = (
            dialects(self.versions.get(previous_id)),
            dialects(self.versions.get(self.current_version_id)),
        )
        if not before <= after:
            raise BadRequestError(
                f"Cannot replace view due to loss of view dialects ({_DROP_DIALECT}=false):\n"
                f"Previous dialects: {sorted(before)}\nNew dialects: {sorted(after)}",
                type="IllegalStateException",
            )

    def _frozen_log(self, new_id: NewId, rows: NewRows) -> Log:
        items = [*self.imported_log, *([self.log_item] if self.log_item else [])]
        log = self._start.version_log
        if items:
            log, new = logs.append(log, items, self.reader, new_id)
            rows += new
        if not self.changes or not self._expire_versions():
            return log
        found = _decode_log(b"[" + logs.text(log, WithNew(self.reader, rows)) + b"]")
        gone = [position for position, item in enumerate(found) if item.version_id not in self.versions]
        return logs.drop_first(log, gone[-1] + 1) if gone else log

    def _expire_versions(self) -> bool:
        """Remove the oldest versions if there are too many (see `freeze`). Return whether any version was removed."""
        size = self._history_size()
        keep = max(len(self.added_versions | {self.current_version_id}), size)
        if len(self.versions) <= keep:
            return False
        newest = sorted((id for id in self.versions.ids() if id != self.current_version_id), reverse=True)
        self.versions.keep([self.current_version_id, *newest[: keep - 1]])
        return True

    def _history_size(self) -> int:
        text = self.properties.get(_HISTORY_SIZE, str(_HISTORY_SIZE_DEFAULT))
        size = parse_int(text)
        if size is None:
            raise invalid(f"{_HISTORY_SIZE} must be an integer but was {text[:200]}")
        if size <= 0:
            raise invalid(f"{_HISTORY_SIZE} must be positive but was {text[:200]}")
        return size


def _columns(versions: NumberedPieces, schemas: NumberedPieces, version_id: int) -> SchemaIndex | None:
    version = versions.get(version_id)
    schema = None if version is None else schemas.get(version["schema-id"])
    return None if schema is None else SchemaIndex(schema)


def version_form(version: Json) -> object:
    """Return the fields by which view versions are compared: summary, representations, default catalog, default
    namespace and schema id. Versions with the same values in these fields count as equal."""
    return [version.get(name) for name in _SAME_VERSION]


def dialects(version: Json | None) -> set[str]:
    """Return the SQL dialects for which a view version has a query, in lower case."""
    representations = [] if version is None else version["representations"]
    return {r["dialect"].lower() for r in representations if r["type"].lower() == "sql"}
