"""Requirements and updates of either kind of content: tables in `table_updates`, views in `view_updates`.

The rules, with the tests that show them, are listed in those two modules.
"""

from __future__ import annotations

from collections.abc import Sequence

from polaris_spark.catalog.metadata import requirements, table_updates, view_updates
from polaris_spark.catalog.metadata.draft import TableDraft
from polaris_spark.catalog.metadata.texts import Json
from polaris_spark.catalog.metadata.view_draft import ViewDraft


def check(draft: TableDraft | ViewDraft, requirement: Json) -> None:
    """Check one requirement, before any update is applied.

    Raises:
        CommitFailedError: it does not hold.
        BadRequestError: it is unknown, malformed, or of the other kind.
    """
    if isinstance(draft, TableDraft):
        requirements.check(draft, requirement)
    else:
        view_updates.check_view(draft, requirement)


def check_all(draft: TableDraft | ViewDraft, required: Sequence[Json]) -> None:
    """Check all requirements of a request; `assert-create` tolerates no other beside it.

    Raises:
        CommitFailedError, BadRequestError: as `check` does.
    """
    if isinstance(draft, TableDraft):
        requirements.check_all(draft, required)
    else:
        for requirement in required:
            view_updates.check_view(draft, requirement)


def apply(draft: TableDraft | ViewDraft, update: Json) -> None:
    """Apply one update of the REST specification.

    Raises:
        BadRequestError: the update is unknown, malformed, not possible, or of the other kind.
        CommitFailedError: a new snapshot was made on a state that the table has left: make it anew.
    """
    if isinstance(draft, TableDraft):
        table_updates.apply(draft, update)
    else:
        view_updates.apply_view(draft, update)


def apply_all(draft: TableDraft | ViewDraft, updates: Sequence[Json]) -> None:
    """Apply all updates of a request, in order.

    Raises:
        BadRequestError, CommitFailedError: as `apply` does.
    """
    if isinstance(draft, TableDraft):
        table_updates.apply_all(draft, updates)
    else:
        view_updates.apply_view_updates(draft, updates)
