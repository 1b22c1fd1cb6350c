"""Requirements and updates of tables (`table_updates`) and of views (`view_updates`).

These two modules list the rules and the tests of each rule.
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
        CommitFailedError: the requirement does not hold.
        BadRequestError: the requirement is unknown or malformed, or applies to views and not to tables, or vice versa.
    """
    if isinstance(draft, TableDraft):
        requirements.check(draft, requirement)
    else:
        view_updates.check_view(draft, requirement)


def check_all(draft: TableDraft | ViewDraft, required: Sequence[Json]) -> None:
    """Check all requirements of a request; `assert-create` cannot be combined with others.

    Raises:
        CommitFailedError, BadRequestError: as in `check`.
    """
    if isinstance(draft, TableDraft):
        requirements.check_all(draft, required)
    else:
        for requirement in required:
            view_updates.check_view(draft, requirement)


def apply(draft: TableDraft | ViewDraft, update: Json) -> None:
    """Apply one update of the REST specification.

    Raises:
        BadRequestError: the update is unknown, malformed or not possible, or applies to views and not to tables, or
            vice versa.
        CommitFailedError: a new snapshot was made on an older state of the table; the client must retry.
    """
    if isinstance(draft, TableDraft):
        table_updates.apply(draft, update)
    else:
        view_updates.apply_view(draft, update)


def apply_all(draft: TableDraft | ViewDraft, updates: Sequence[Json]) -> None:
    """Apply all updates of a request, in order.

    Raises:
        BadRequestError, CommitFailedError: as in `apply`.
    """
    if isinstance(draft, TableDraft):
        table_updates.apply_all(draft, updates)
    else:
        view_updates.apply_view_updates(draft, updates)
