"""Lookup of the fields of all partition specs of a draft.

The lookup is updated when a spec is added or removed, so that adding or removing a spec does not read all other specs.
"""

from __future__ import annotations

from collections.abc import Iterable

from polaris_spark.catalog.metadata.schemas import SchemaIndex
from polaris_spark.catalog.metadata.texts import Json

_Transformed = tuple[int, str]
"""(id of the source column, transform) of a partition field."""


class SpecFields:
    """The fields of all partition specs of a draft, by source column and transform, and by field name."""

    __slots__ = ("_ids", "_specs", "_unsound", "_used", "_version", "_versions")

    def __init__(self, specs: Iterable[tuple[int, Json]]) -> None:
        """
        Args:
            specs: (id, spec) of each partition spec, in order.
        """
        self._specs: dict[int, Json] = {}
        self._ids: dict[_Transformed, dict[int, int]] = {}
        """For each source column and transform: the field id in each spec, by spec id, the latest spec last."""
        self._used: dict[str, dict[int, int]] = {}
        """For each field name: the number of fields with this name, by the id of their source column."""
        self._unsound: set[int] = set()
        """Ids of the specs that have an empty field name or use a field name twice. Registered files can contain such
        specs."""
        self._version = 0
        """Number of times that specs were added or removed."""
        self._versions: dict[SchemaIndex, int] = {}
        """For each schema for which `needs_name_check` returned False: the value of `_version` at that time."""
        for id, spec in specs:
            self.add(id, spec)

    def add(self, id: int, spec: Json) -> None:
        """Add a spec. All its fields must have ids."""
        self._version += 1
        self._specs[id] = spec
        names: set[str] = set()
        for field in spec["fields"]:
            name, source = field["name"], field["source-id"]
            self._ids.setdefault((source, field["transform"]), {})[id] = field["field-id"]
            sources = self._used.setdefault(name, {})
            sources[source] = sources.get(source, 0) + 1
            if not name or name in names:
                self._unsound.add(id)
            names.add(name)

    def remove(self, ids: Iterable[int]) -> None:
        """Remove the specs with these ids; unknown ids are ignored."""
        self._version += 1
        for id in ids:
            spec = self._specs.pop(id, None)
            self._unsound.discard(id)
            for field in () if spec is None else spec["fields"]:
                self._ids[field["source-id"], field["transform"]].pop(id, None)
                sources = self._used[field["name"]]
                sources[field["source-id"]] -= 1
                if not sources[field["source-id"]]:
                    del sources[field["source-id"]]

    def field_id(self, source: int, transform: str) -> int | None:
        """Return the id that the latest spec with a field of this source column and transform gives to the field.

        Return None if no spec has a field of this source column and transform.
        """
        found = self._ids.get((source, transform))
        return found[next(reversed(found))] if found else None

    def needs_name_check(self, schema: SchemaIndex) -> bool:
        """Return whether the caller must call `check_names` with each of the specs and this schema.

        False means that `check_names` would accept every spec. True means that it might refuse a spec. A result of
        False is cached for the schema until a spec is added or removed.
        """
        if self._unsound:
            return True
        if self._versions.get(schema) == self._version:
            return False
        for name in schema.by_name.keys() & self._used.keys():
            sources = self._used[name]
            column = schema.by_name[name]
            if any(source != column for source in sources.keys() & schema.by_id.keys()):
                return True
        self._versions[schema] = self._version
        return False
