"""Properties of a catalog: which properties can be set, and which value applies if both a catalog and a session set
one.

The catalog's properties apply to all sessions of all processes. They are stored in the catalog's row in the reference
`catalogs`. Each branch of the catalog has a copy of the row (`property_changes`), which a session reads with the head
of its branch. If a session sets a property, too:

- For properties that decide what is deleted (`STRICTER`), the stricter value applies. `gc.enabled` is false if either
  value is false. Of two periods or numbers, the larger one applies.
- `allowed-locations`: both values apply.
- `table-override.*`: the catalog's value applies.
- For all other properties, the session's value applies.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from polaris_spark.catalog.files.files import absolute
from polaris_spark.catalog.files.locations import segments
from polaris_spark.catalog.metadata.rows import SUPPORTED_FORMAT_VERSION
from polaris_spark.catalog.rows import PROPERTIES, ROW, CatalogRow
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.config import Properties
from polaris_spark.errors import BadRequestError, InputError, RequestError
from polaris_spark.index import Entry
from polaris_spark.property_values import count, duration_ms, flag, metadata_files, role_arn, whole_number
from polaris_spark.secret_options import REFERENCE
from polaris_spark.store.objects import ObjectStore

WAREHOUSE: Final = "warehouse"
"""Name of the catalog property for the location below which tables are placed. It is fixed when the catalog is
created."""
SHARED_LOCATIONS: Final = "shared-locations"
"""Name of the catalog property that decides whether tables may overlap the locations of other tables: `allow` or
`refuse`."""
ALLOWED_LOCATIONS: Final = "allowed-locations"
"""Name of the catalog property with the locations, separated by commas, below which tables and views may lie besides
the warehouse. If it is not set, they may lie anywhere."""
GC_ENABLED: Final = "gc.enabled"
MAX_SNAPSHOT_AGE: Final = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS: Final = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE: Final = "history.expire.max-ref-age-ms"
RETENTION: Final = (MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS, MAX_REF_AGE, GC_ENABLED)
"""Names of the properties that decide which snapshots are kept. A table's value takes precedence over its namespace's
value, and the namespace's value over the catalog's value."""
HISTORY_RETENTION: Final = "history-retention"
LOG_RETENTION: Final = "log-retention"
GRACE: Final = "grace"

STORAGE_ROLE: Final = "storage.role-arn"
"""Name of the property with the role that a server assumes to get credentials for the catalog's tables, one of those
that the server's settings allow (`storage.settings`)."""

_FIXED = (WAREHOUSE, SHARED_LOCATIONS)
"""Names of the properties that cannot be changed after a catalog is created."""

Segments = tuple[str, ...]


def allowed_locations(name: str, text: str) -> tuple[Segments, ...]:
    """Return the locations in the value of the property `allowed-locations`, as path segments
    (`locations.segments`).

    Raises:
        InputError: a location is not absolute.
    """
    try:
        return tuple(segments(one.strip()) for one in text.split(",") if one.strip())
    except BadRequestError as error:
        raise InputError(f"{name}: {error}") from error


PARSERS: Mapping[str, Callable[[str, str], object]] = {
    GC_ENABLED: flag,
    MAX_SNAPSHOT_AGE: whole_number,
    MIN_SNAPSHOTS: whole_number,
    MAX_REF_AGE: whole_number,
    HISTORY_RETENTION: duration_ms,
    LOG_RETENTION: duration_ms,
    GRACE: duration_ms,
    ALLOWED_LOCATIONS: allowed_locations,
    "metadata-files": metadata_files,
    "metrics-reports": count,
    "create-parent-namespaces": flag,
    "polaris.append-rebase": flag,
    "polaris.schema-merge": flag,
    STORAGE_ROLE: role_arn,
}
"""Maps the name of each property that can be set to the function that checks its value. Properties with a prefix in
`TABLE_PREFIXES` can be set, too."""

TABLE_DEFAULT: Final = "table-default."
"""Prefix of properties that a new table gets unless its request sets them."""
TABLE_OVERRIDE: Final = "table-override."
"""Prefix of properties that a new table gets even if its request sets them to other values."""
TABLE_PREFIXES: Final = (TABLE_DEFAULT, TABLE_OVERRIDE)
MOST_BYTES: Final = 64 * 2**10
"""Maximum size of all properties of a catalog together, in UTF-8 bytes of names and values."""
MOST_BYTES_OF_A_VALUE: Final = 4 * 2**10
_FORMAT_VERSIONS: Final = tuple(f"{prefix}format-version" for prefix in TABLE_PREFIXES)


def checked(given: Mapping[str, str]) -> dict[str, str]:
    """Check properties that a catalog is to get, and return them, without whitespace around the values of properties in
    `PARSERS`.

    Raises:
        InputError: a property cannot be set, or its value cannot be used.
    """
    for name, text in given.items():
        _require_text(name, text)
    require_settable(given)
    for name, text in given.items():
        if text.startswith(REFERENCE):
            raise InputError(f"{name} is stored in the catalog, so its value cannot be env:NAME")
        if name in PARSERS:
            PARSERS[name](name, text)
        elif name in _FORMAT_VERSIONS:
            _require_format_version(name, text)
    return {name: text.strip() if name in PARSERS else text for name, text in given.items()}


def require_bounded(properties: Mapping[str, str]) -> None:
    """Check the size of a catalog's properties. It is limited because new tables get some of these properties.

    Raises:
        InputError: a value is too long, or all names and values together are too long.
    """
    sizes = {name: len(text.encode()) for name, text in properties.items()}
    for name, size in sizes.items():
        if size > MOST_BYTES_OF_A_VALUE:
            raise InputError(
                f"the value of {name[:200]!r} has {size} bytes; the maximum is {MOST_BYTES_OF_A_VALUE}"
            )
    total = sum(sizes.values()) + sum(len(name.encode()) for name in sizes)
    if total > MOST_BYTES:
        raise InputError(f"the properties of the catalog have {total} bytes; the maximum is {MOST_BYTES}")


def _require_text(name: object, text: object) -> None:
    for one in (name, text):
        if not isinstance(one, str):
            raise InputError(f"the property {name!r} and its value {text!r} must be strings")
        if any("\ud800" <= character <= "\udfff" for character in one):
            raise InputError(
                f"the property {name!a} or its value contains a surrogate, which is not valid Unicode"
            )


def _require_format_version(name: str, text: str) -> None:
    versions = [str(version) for version in range(1, SUPPORTED_FORMAT_VERSION + 1)]
    if text not in versions:
        raise InputError(f"the property {name!r} is {text!r}; it must be one of {', '.join(versions)}")


def require_settable(names: Iterable[str]) -> None:
    """Check that properties with these names can be set and unset.

    Raises:
        InputError: a property cannot be set or unset. The message contains the first such name.
    """
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"the name of a property must be a string, got {name!r}")
        if name in _FIXED:
            raise InputError(f"the property {name!r} of a catalog is fixed when the catalog is created")
        if not _is_settable(name):
            near = difflib.get_close_matches(name.lower().replace("_", "-"), PARSERS, n=1)
            known = ", ".join([*sorted(PARSERS), *(f"{prefix}*" for prefix in TABLE_PREFIXES)])
            hint = f"did you mean {near[0]!r}?" if near else f"it can have: {known}"
            raise InputError(f"a catalog cannot have the property {name!r}; {hint}")


def given_by(session: Properties) -> dict[str, str]:
    """Return those properties of a session that a catalog can have, too, after checking them with `checked`.

    Raises:
        InputError: a value cannot be used.
    """
    given = {**session.own, **session.other}
    return checked({name: text for name, text in given.items() if _is_settable(name)})


def _is_settable(name: str) -> bool:
    return name in PARSERS or (name.startswith(TABLE_PREFIXES) and name not in TABLE_PREFIXES)


def _stricter_flag(one: str, other: str) -> str:
    return one if one.strip().lower() != "true" else other


def _longer(one: str, other: str) -> str:
    return max(one, other, key=period_ms)


def _larger(one: str, other: str) -> str:
    return max(one, other, key=_number)


def period_ms(text: str) -> int:
    """Return a stored period in milliseconds. If this release cannot parse it, return the longest possible period, so
    that nothing is deleted."""
    try:
        return duration_ms("period", text)
    except InputError:
        return duration_ms("period", f"{100_000 * 366} d")


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return math.inf  # the code that uses the value raises the error


STRICTER: Mapping[str, Callable[[str, str], str]] = {
    GC_ENABLED: _stricter_flag,
    MAX_SNAPSHOT_AGE: _larger,
    MIN_SNAPSHOTS: _larger,
    MAX_REF_AGE: _larger,
    HISTORY_RETENTION: _longer,
    LOG_RETENTION: _longer,
    GRACE: _longer,
}
"""The properties that decide what is deleted. Maps the name of each property to a function that returns the stricter of
two values."""


class EffectiveProperties(NamedTuple):
    """The properties that apply to requests of a session at one commit, from the catalog and the session."""

    metadata_files: bool = True
    """Whether every commit to a table or view also writes its metadata file."""
    create_parents: bool = True
    """Whether missing parents of new namespaces are created."""
    append_rebase: bool = False
    """Whether appends are rebased in tables that do not set `polaris.append-rebase`."""
    schema_merge: bool = False
    """Whether concurrently added columns are merged in tables that do not set `polaris.schema-merge`."""
    metrics_reports: int = 0
    """Approximate number of metrics reports that the catalog keeps. If 0, it keeps none and does not offer clients
    the endpoint for reports."""
    retention: Mapping[str, str] = {}
    """The catalog's values of the properties in `RETENTION`. They apply where a table or namespace sets no value."""
    table_defaults: Mapping[str, str] = {}
    """Properties that a new table gets unless its request sets them."""
    table_overrides: Mapping[str, str] = {}
    """Properties that a new table gets even if its request sets them to other values."""
    allowed: tuple[tuple[Segments, ...], ...] = ()
    """For each of these tuples, tables and views must lie below one of its locations. One of these is the catalog's
    warehouse."""
    storage_role: str | None = None
    """Role that the catalog chooses for credentials; None to use the role in the server's settings."""


class Binding:
    """Combines the properties of a session with those of the catalog, at any commit of a branch. Thread-safe."""

    def __init__(self, session: Properties, stored: Mapping[str, str], copy: Entry | None) -> None:
        """
        Args:
            session: properties of the session.
            stored: properties in the catalog's row.
            copy: index entry of the branch's copy of the row, read before the row; None if there is no copy. As long as
                the branch has this copy or no copy, `stored` is used, because it was read later and may be newer.
        Raises:
            InputError: a value that the session sets cannot be used.
        """
        self._session = session
        self._given = given_by(session)
        self._opened = _pointer(copy)
        self._at_opening = self._combined(stored)
        self._last = (self._opened, self._at_opening)

    @property
    def latest(self) -> EffectiveProperties:
        """The properties that applied at the last commit that `at` or `of` was called for."""
        return self._last[1]

    def at(self, state: State) -> EffectiveProperties:
        """Return the properties that apply to a change of `state`. The read is recorded, so the change is
        applied again if another commit changes the properties first."""
        return self._of(state.lookup(PROPERTIES, ROW), state)

    def of(self, head: CommitReader) -> EffectiveProperties:
        """Return the properties that apply at a commit of the branch."""
        return self._of(head.index(PROPERTIES).get(ROW), head.store)

    def _of(self, copy: Entry | None, reader: State | ObjectStore) -> EffectiveProperties:
        pointer = 0 if copy is None else copy.pointer
        known, effective = self._last
        if known != pointer:
            # If there is no copy, the branch was dropped since the session opened it, and created again from an old
            # commit.
            known_row = pointer in (0, self._opened)
            effective = (
                self._at_opening if known_row else self._combined(reader.get(pointer, CatalogRow).properties)
            )
            self._last = (pointer, effective)
        return effective

    def retention(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Return the properties in `RETENTION` that apply if the catalog's row has the properties `stored`."""
        found = {name: stored[name] for name in RETENTION if name in stored}
        for name in RETENTION:
            given = self._given.get(name)
            if given is not None:
                found[name] = STRICTER[name](found[name], given) if name in found else given
        return found

    def grace_beyond_ms(self, stored: Mapping[str, str], *, is_own: bool) -> int:
        """Return the grace period of a catalog minus the session's grace period, in milliseconds.

        Args:
            stored: properties in the catalog's row.
            is_own: whether this is the session's catalog. The session's grace period applies to another catalog only if
                that catalog sets none.
        """
        return self.period_ms(GRACE, stored, is_own=is_own) - self._session.grace

    def period_ms(
        self, name: str, stored: Mapping[str, str], asked: int | None = None, *, is_own: bool
    ) -> int:
        """Return the value of a period that applies to a catalog of the realm, in milliseconds.

        Args:
            name: `grace`, `history-retention` or `log-retention`.
            stored: properties in the catalog's row.
            asked: argument of a job that replaces the session's property, in milliseconds; None if not given.
            is_own: whether this is the session's catalog. The session's property applies to another catalog only if
                that catalog does not set the property.
        """
        session = self._session
        own = {
            GRACE: session.grace,
            HISTORY_RETENTION: session.history_retention,
            LOG_RETENTION: session.log_retention,
        }[name]
        kept = period_ms(stored[name]) if name in stored else None
        if asked is None and is_own and name in self._given:
            asked = own
        if asked is None:
            return own if kept is None else kept
        return asked if kept is None else max(asked, kept)

    def _combined(self, stored: Mapping[str, str]) -> EffectiveProperties:
        session = self._session

        def value(name: str, given: object) -> object:
            if name in self._given or name not in stored:
                return given
            try:
                return PARSERS[name](name, stored[name])
            except InputError:  # a value of a newer release
                return given

        files = value("metadata-files", session.metadata_files)
        reports = value("metrics-reports", session.metrics_reports)
        assert isinstance(reports, int)
        return EffectiveProperties(
            metadata_files=files == "every-commit",
            create_parents=bool(value("create-parent-namespaces", session.create_parent_namespaces)),
            append_rebase=bool(value("polaris.append-rebase", session.append_rebase)),
            schema_merge=bool(value("polaris.schema-merge", session.schema_merge)),
            metrics_reports=reports,
            retention=self.retention(stored),
            table_defaults=_without(TABLE_DEFAULT, {**stored, **self._given}),
            table_overrides=_without(TABLE_OVERRIDE, {**self._given, **stored}),
            allowed=self._allowed(stored),
            storage_role={**stored, **self._given}.get(STORAGE_ROLE),
        )

    def _allowed(self, stored: Mapping[str, str]) -> tuple[tuple[Segments, ...], ...]:
        given = (one[ALLOWED_LOCATIONS] for one in (stored, self._given) if ALLOWED_LOCATIONS in one)
        warehouse = stored.get(WAREHOUSE) or self._session.warehouse
        own = () if warehouse is None else (segments(absolute(warehouse)),)
        found: list[tuple[Segments, ...]] = []
        for text in given:
            try:
                found.append(own + allowed_locations(ALLOWED_LOCATIONS, text))
            except InputError:  # a value of a newer release: nothing but the warehouse is allowed
                found.append(own)
        return tuple(dict.fromkeys(found))


def changed(
    before: Mapping[str, str], updates: Mapping[str, str], removals: Collection[str]
) -> dict[str, str]:
    """Return the properties `before`, with `updates` set and `removals` removed."""
    return {name: text for name, text in before.items() if name not in removals} | dict(updates)


@contextmanager
def naming_properties(effective: EffectiveProperties, asked: Collection[str]) -> Iterator[None]:
    """Context manager for the creation of a table. If an error mentions a property that the table gets from the
    catalog, add the name of the catalog's property to the message.

    Args:
        asked: names of the properties that the request for the table sets.
    """
    try:
        yield
    except RequestError as error:
        named = {name: TABLE_DEFAULT + name for name in effective.table_defaults if name not in asked}
        named |= {name: TABLE_OVERRIDE + name for name in effective.table_overrides}
        words = re.findall(r"[\w-]+(?:\.[\w-]+)+", str(error))
        found = next((named[word] for word in words if word in named), None)
        if found is not None:
            error.args = (f"{error}; the table gets it from the catalog's property {found!r}",)
        raise


def _without(prefix: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the properties whose names begin with a prefix. The prefix is removed from the names."""
    return {name.removeprefix(prefix): text for name, text in given.items() if name.startswith(prefix)}


def _pointer(copy: Entry | None) -> int:
    return 0 if copy is None else copy.pointer
