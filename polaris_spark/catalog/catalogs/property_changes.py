"""Setting properties of a catalog.

The catalog's row is changed first, by a commit to the reference `catalogs`. Then a separate commit to each branch of
the catalog writes a copy of the row. From that commit on, the properties apply to all processes that work on the
branch. If a process dies between these commits, the next process that opens the branch or sets properties writes the
missing copies.

A copy never replaces a newer copy. The commit that writes a copy first reads the branch's current copy, and then the
catalog's row. If the branch's copy changes before the commit takes effect, both are read again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from polaris_spark.catalog.catalogs.catalogs import (
    StoredCatalog,
    branches_of,
    catalog_key,
    find_by_id,
    read_catalog,
)
from polaris_spark.catalog.catalogs.references import CATALOGS, heads_prefix
from polaris_spark.catalog.entities.entities import CatalogChange, Context, TimedChange
from polaris_spark.catalog.entities.properties import changed, checked, require_bounded, require_settable
from polaris_spark.catalog.metadata.bounds import require_properties_within
from polaris_spark.catalog.rows import NAMES, PROPERTIES, ROW, CatalogRow, id_bytes
from polaris_spark.commits.change import Operation, Unrepeated
from polaris_spark.commits.rows import LogEntry
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import (
    CommitFailedError,
    CorruptionError,
    InputError,
    NewerFormatError,
    NotFoundError,
    PolarisError,
    ReferenceGoneError,
)
from polaris_spark.index import Entry
from polaris_spark.system.registry import References

log = logging.getLogger("polaris_spark")

SET_PROPERTIES: Final = "set-catalog-properties"
"""Action in log entries for changed properties of a catalog, both in the reference `catalogs` and in branches."""


class SetProperties(TimedChange[CatalogRow]):
    """Set and remove properties in a catalog's row.

    Raises:
        NotFoundError: the catalog does not exist.
        NewerFormatError: a newer release wrote the row.
    """

    action = SET_PROPERTIES

    def __init__(
        self,
        context: Context,
        operation: Operation,
        row: CatalogRow,
        updates: Mapping[str, str],
        removals: Collection[str],
        *,
        expected: int | None = None,
    ) -> None:
        super().__init__(context, operation)
        if not isinstance(updates, Mapping):
            raise InputError(f"give the properties to set as a dictionary, not as {updates!r}")
        if not isinstance(removals, (list, tuple, set, frozenset)):
            raise InputError(f"give the names of properties to remove as a list, not as {removals!r}")
        require_settable(removals)
        self.updates, self.removals = checked(updates), list(dict.fromkeys(removals))
        require_properties_within(self.updates)
        both = sorted(set(updates) & set(self.removals))
        if both:
            raise InputError(
                f"properties both set and removed: {', '.join(both)}; a request may only do one of these for each "
                "property"
            )
        self.row = row
        self.expected = expected

    def apply(self, state: State, prepared: int) -> CatalogRow:
        found = find_by_id(state, self.row)
        if found is None:
            raise NotFoundError(f"catalog {self.row.name!r} no longer exists")
        key, entry = found
        if self.expected not in (None, entry.pointer):
            raise CommitFailedError(
                f"catalog {self.row.name!r} has changed since it was read; read it again, and repeat the change"
            )
        before = state.get_for_rewrite(entry.pointer, CatalogRow)
        properties = changed(before.properties, self.updates, self.removals)
        if properties == before.properties:
            return before
        require_bounded(properties)
        row = msgspec.structs.replace(before, properties=properties)
        after = state.add(row)
        state.put(NAMES, key, Entry(after, entry.value))
        state.put(PROPERTIES, key, Entry(value=id_bytes(row.entity_id) + self.operation.principal.encode()))
        summary = _summary(before.properties, properties)
        self.record(state, prepared, row.entity_id, key, before=entry.pointer, after=after, summary=summary)
        return row

    def repeat(self, state: State, entries: list[LogEntry]) -> CatalogRow:
        return state.get(entries[-1].after, CatalogRow)


class CopyRow(Unrepeated, CatalogChange[tuple[int, StoredCatalog | None], None]):
    """Write a copy of the catalog's current row to a branch, unless the branch has this copy already.

    The log entry has no content before or after the change, because the catalog is not an entity of its branch. The
    entry contains the principal that set the properties, even if another principal's process writes the copy.
    """

    action = SET_PROPERTIES
    onto_protected = True

    def __init__(
        self, context: Context, operation: Operation, row: CatalogRow, references: References
    ) -> None:
        super().__init__(context, operation)
        self._row = row
        self._references = references

    def prepare(self, view: State) -> tuple[int, StoredCatalog | None]:
        view.lookup(PROPERTIES, ROW)  # before the row: if the copy changes, both are read again
        found = read_catalog(self._references, self._row.name, id=self._row.entity_id, for_rewrite=True)
        return self.context.clock.now_ms(), found

    def apply(self, state: State, prepared: tuple[int, StoredCatalog | None]) -> None:
        now, found = prepared
        copy = state.lookup(PROPERTIES, ROW)
        if found is None or not is_missing(self._row, found, copy):
            return
        before = self._row if copy is None else state.get(copy.pointer, CatalogRow)
        state.put(PROPERTIES, ROW, Entry(state.add(found.row), id_bytes(found.pointer)))
        key, summary = catalog_key(found.row.name), _summary(before.properties, found.row.properties)
        self.record(state, now, found.row.entity_id, key, summary=summary, principal=found.set_by)


def is_missing(row: CatalogRow, found: StoredCatalog | None, copy: Entry | None) -> bool:
    """Whether a branch of a catalog needs a copy of the catalog's current row and does not have it. A copy is needed if
    the catalog still exists and its properties were changed after its creation.

    Args:
        row: row of the catalog, possibly an older one.
        found: the catalog that has this name now; None if there is none.
        copy: index entry of the branch's copy of the row; None if there is no copy.
    """
    if found is None or found.row.entity_id != row.entity_id or found.set_by is None:
        return False
    return copy is None or copy.value != id_bytes(found.pointer)


def set_properties(
    references: References,
    context: Context,
    operation: Operation,
    row: CatalogRow,
    updates: Mapping[str, str],
    removals: Collection[str],
    *,
    expected: int | None = None,
) -> CatalogRow:
    """Set and remove properties of a catalog. When this returns, the new properties apply to all processes.

    Args:
        expected: object id of the row that the catalog must have; None for any.
    Returns:
        the catalog's new row.
    Raises:
        CommitFailedError: the catalog does not have the row `expected`.
        InputError: a property cannot be set, or its value cannot be used.
        NotFoundError: the catalog no longer exists.
        NewerFormatError: a newer release wrote the row.
        PolarisError: the properties are set, but do not apply to a branch yet, because its reference cannot be read or
            changed. They apply when the branch is opened or properties are set again.
    """
    change = SetProperties(context, operation, row, updates, removals, expected=expected)
    after = references.commit(CATALOGS, change)
    copy_to_branches(references, context, operation, row)
    return after


def copy_to_branches(
    references: References,
    context: Context,
    operation: Operation,
    row: CatalogRow,
    *,
    what: str = "the properties are set, but",
    advice: str = "set them again",
) -> None:
    """Write a copy of a catalog's row to all its branches that do not have this copy.

    Args:
        what: beginning of the error message, which says what was done.
        advice: end of the error message, which says how the user can complete the change.
    Raises:
        PolarisError: a copy was not written, because the branch's reference cannot be read or changed.
    """
    failed: tuple[str, PolarisError] | None = None
    done: set[str] = set()
    while names := [name for name in branches_of(references, row) if name not in done]:
        for name in names:
            done.add(name)
            try:
                copy_row(references, context, Operation(b"", operation.principal), row, name)
            except ReferenceGoneError:  # dropped meanwhile
                continue
            except PolarisError as error:
                failed = failed or (name.removeprefix(heads_prefix(row)), error)
    if failed is not None:
        branch, reason = failed
        repair = ""
        if isinstance(reason, CorruptionError):
            repair = "repair the branch (run polaris-spark fsck and recover to find the damage), then "
        # Raise the same exception, so that callers can check its type.
        reason.args = (f"{what} do not apply to branch {branch!r} yet: {reason}; {repair}{advice}",)
        raise reason


def copy_row(
    references: References, context: Context, operation: Operation, row: CatalogRow, reference: str
) -> None:
    """Write a copy of the catalog's row to a branch if the branch does not have this copy.

    Args:
        reference: name of the branch's reference.
    """
    copy = references.read(reference).index(PROPERTIES).get(ROW)
    if is_missing(row, read_catalog(references, row.name, id=row.entity_id), copy):
        references.commit(reference, CopyRow(context, operation, row, references))


def bind_branch(
    references: References, context: Context, operation: Operation, row: CatalogRow, reference: str
) -> None:
    """Write a copy of the catalog's row to a branch if the branch does not have this copy. Jobs call this before they
    delete files, because the current properties may protect files.

    A branch that was undropped, or created from an old commit, does not have the copy. If a newer release wrote the
    row, do nothing; a process of that release will write the copy.
    """
    with contextlib.suppress(NewerFormatError):
        copy_row(references, context, operation, row, reference)


def complete_copy(
    references: References,
    context: Context,
    operation: Operation,
    row: CatalogRow,
    head: CommitReader,
    name: str,
) -> CatalogRow:
    """Return the current row of a catalog, and write the branch's copy of this row if it is missing.

    If the copy cannot be written, log a warning. The session that opens the branch uses the returned row anyway.

    Args:
        head: the head of the branch, read before this call.
        name: name of the branch's reference.
    """
    found = read_catalog(references, row.name, id=row.entity_id)
    if found is None or found.row.entity_id != row.entity_id:
        return row
    if is_missing(row, found, head.index(PROPERTIES).get(ROW)):
        try:
            references.commit(name, CopyRow(context, operation, row, references))
        except NewerFormatError:  # a process of the newer release will write it
            pass
        except PolarisError as error:
            log.warning("properties of catalog %r do not apply to other processes yet: %s", row.name, error)
    return found.row


def _summary(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return the summary for a log entry. The key `set <name>` holds each value that was set; the key `unset` holds the
    names of the properties that were removed, separated by spaces."""
    found = {f"set {name}": text for name, text in after.items() if before.get(name) != text}
    removed = [name for name in before if name not in after]
    return found | ({"unset": " ".join(removed)} if removed else {})
