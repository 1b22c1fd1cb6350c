"""Code that `heads` and `recover` share: which references they read, and the form of their results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich.text import Text

from polaris_spark.catalog.catalogs.references import CATALOGS, head_name
from polaris_spark.catalog.rows import DROPPED, NAMES, CatalogRow
from polaris_spark.cli.output import hexadecimal, plain
from polaris_spark.cli.stores import OpenRealm
from polaris_spark.clock import iso_text
from polaris_spark.commits.completeness import Lost
from polaris_spark.commits.lineage import Known
from polaris_spark.commits.rows import Commit, Head
from polaris_spark.commits.state import CommitReader
from polaris_spark.errors import CorruptionError, InputError
from polaris_spark.names import MAIN
from polaris_spark.system.recovery.survey import SurveyedReference

Json = dict[str, Any]

NAMED = 3
"""Maximum number of lost objects that are shown with their ids; the others are only counted."""


def chosen(place: OpenRealm, catalog: str | None, branch: str | None, reference: str | None) -> str | None:
    """Return the name of the reference that the options select; None for all references.

    Raises:
        InputError: the options contradict each other.
        CorruptionError: the list of catalogs is lost. The option `--reference` still works.
    """
    if reference is not None and (catalog is not None or branch is not None):
        raise InputError("--reference cannot be combined with --catalog or --branch")
    if catalog is None and branch is None:
        return reference
    try:
        row = place.catalog(catalog)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}; the list of catalogs is lost: use --reference instead of --catalog and --branch"
        ) from error
    return head_name(row, branch or MAIN)


def strays(place: OpenRealm, found: Sequence[SurveyedReference]) -> set[str]:
    """Return the names of the references whose catalog is missing from the newest complete commit of the reference
    `catalogs`."""
    target = next((one.target for one in found if one.name == CATALOGS), None)
    if target is None:
        return set()
    commit = place.objects.get(target.id, Commit)
    opened = CommitReader(place.objects, b"", Head(target.id, target.number, target.time), commit)
    pointers = [entry.pointer for name in (NAMES, DROPPED) for _, entry in opened.index(name).range()]
    known = {f"{row.entity_id:x}" for row in place.objects.get_many(pointers, CatalogRow).values()}
    names = [one.name for one in found if one.name.startswith("cat/")]
    return {name for name in names if name.split("/")[1] not in known}


def commit_json(known: Known) -> Json:
    """Return the number, id and time of a commit as a JSON value."""
    return {
        "number": known.number,
        "id": hexadecimal(known.id),
        "time": iso_text(known.time) if known.time else None,
    }


def lost_json(lost: tuple[Lost, ...]) -> Json:
    """Return lost objects as a JSON value: their number, and descriptions of the first `NAMED` of them."""
    return {
        "count": len(lost),
        "first": [
            {
                "id": hexadecimal(one.id),
                "reason": one.reason,
                "needed-by": hexadecimal(one.holder) if one.holder else None,
                "type-of-that": one.holder_type or None,
            }
            for one in lost[:NAMED]
        ],
    }


def lost_words(lost: tuple[Lost, ...]) -> str:
    """Return a description of lost objects. It names the first `NAMED` of them."""
    named = [
        f"{one.id:x} ({plain(one.reason)}; "
        + (f"{plain(one.holder_type)} {one.holder:x} needs it)" if one.holder else "the commit)")
        for one in lost[:NAMED]
    ]
    more = [f"{len(lost) - NAMED:,} more"] if len(lost) > NAMED else []
    return ", ".join(named + more)


def stray_words(name: str) -> Text:
    """Return a message that tells the operator what to do about a reference whose catalog is lost."""
    return Text(
        f"{plain(name)} belongs to a lost catalog: search for a commit of {CATALOGS} that lists the catalog "
        f"(heads --reference {CATALOGS} --search), otherwise register its tables again",
        style="yellow",
    )


def found_json(found: SurveyedReference, strays: Collection[str]) -> Json:
    """Return the state of a reference as a JSON value.

    Args:
        found: the reference.
        strays: names of the references whose catalog is lost.
    """
    return {
        "reference": found.name,
        "state": found.state,
        "complete": found.complete,
        "catalog-is-lost": found.name in strays,
        "row": found.row_name if found.head is not None else None,
        "history-floor": found.head.floor_number if found.head is not None else None,
        "newest-complete": None if found.target is None else commit_json(found.target),
        "history-complete-from": None if found.history_from is None else found.history_from.number,
        "lost-history": lost_json(found.lost_history),
        "heads": [
            commit_json(state.known) | {"complete": state.complete, "lost": lost_json(state.lost)}
            for state in found.heads
        ],
        "newer": [commit_json(known) for known in found.newer],
    }
