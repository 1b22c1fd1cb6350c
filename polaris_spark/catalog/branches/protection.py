"""The copy of a branch's protection in its commits.

The registration of a branch says whether the branch is protected, because drops and renames are commits to the
registry. The commits of the branch contain a copy of this information, so that every change to the branch reads it. A
change cannot miss new protection: it is committed only if the branch still has the head that the change has read, and
is otherwise applied again to the new head.

As with the properties of a catalog (`property_changes`), the registration is changed first, and then the copy. Each
change of the registration has a new id, which the copy contains. So a delayed process cannot replace a newer copy by an
older one. If a process dies before it writes the copy, the next process that opens the branch or changes its protection
writes it.
"""

from __future__ import annotations

import logging

from polaris_spark.catalog.catalogs.catalogs import catalog_key
from polaris_spark.catalog.entities.entities import CatalogChange, Context
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.change import Operation, Unrepeated
from polaris_spark.commits.settings import PROTECTED, PROTECTION
from polaris_spark.commits.state import CommitReader, State
from polaris_spark.errors import NotFoundError, PolarisError
from polaris_spark.index import Entry
from polaris_spark.system.registrations import Registered
from polaris_spark.system.registry import References

log = logging.getLogger("polaris_spark")


class CopyProtection(Unrepeated, CatalogChange[tuple[int, Registered], None]):
    """Copy the protection of a branch from its registration to its commits."""

    onto_protected = True

    def __init__(
        self,
        context: Context,
        operation: Operation,
        row: CatalogRow,
        references: References,
        reference: str,
    ) -> None:
        super().__init__(context, operation)
        self._row = row
        self._references = references
        self._reference = reference

    def prepare(self, view: State) -> tuple[int, Registered]:
        view.lookup(
            PROTECTION, PROTECTED
        )  # before the registration: if the copy changes, both are read again
        found = self._references.lookup(self._reference)
        if found is None:
            raise NotFoundError(f"reference {self._reference!r} does not exist")
        return self.context.clock.now_ms(), found

    def apply(self, state: State, prepared: tuple[int, Registered]) -> None:
        now, found = prepared
        r = found.registration
        entry = Entry(value=bytes([r.protected]) + r.protection.to_bytes(8, "big"))
        if state.lookup(PROTECTION, PROTECTED) != entry:
            state.put(PROTECTION, PROTECTED, entry)
            self.action = "protect-branch" if r.protected else "unprotect-branch"
            self.record(state, now, self._row.entity_id, catalog_key(self._row.name))


def complete_protection(
    references: References,
    context: Context,
    operation: Operation,
    row: CatalogRow,
    head: CommitReader,
    name: str,
) -> None:
    """Write the copy of a branch's protection if it is missing. If it cannot be written, log a warning.

    Args:
        head: the head of the branch, read before this call.
        name: name of the branch's reference.
    """
    copy, found = head.index(PROTECTION).get(PROTECTED), references.lookup(name)
    is_protected = copy is not None and copy.value.startswith(b"\x01")
    if found is None or found.registration.protected == is_protected:
        return
    try:
        references.commit(name, CopyProtection(context, operation, row, references, name))
    except PolarisError as error:
        log.warning("the protection of reference %r does not apply to other processes yet: %s", name, error)
