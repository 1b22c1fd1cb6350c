"""Allowed differences between the two sides, each with its reason."""

from __future__ import annotations

from polaris_spark.catalog.metadata.table_updates import RESERVED_PROPERTIES
from tests.differential.requests import Request
from tests.differential.schemas import Json
from tests.differential.sides import Outcome

CRASHES = frozenset(
    {
        "ArithmeticException",
        "ClassCastException",
        "DateTimeException",
        "DateTimeParseException",
        "IndexOutOfBoundsException",
        "NoSuchElementException",
        "NullPointerException",
        "NumberFormatException",
    }
)
"""What Java throws where it did not foresee the request: an internal error for its client."""


def exempt(request: Request, ours: Outcome, theirs: Outcome, problem: str) -> str | None:
    """The name of the exemption that covers a difference, or None."""
    if ours.error and theirs.error in CRASHES:
        return "refused here with an error of the protocol, where Java crashes"
    if (
        ours.error
        and theirs.error
        and (request.verb == "create" or len(request.updates + request.requirements) > 1)
    ):
        return "of several faults, Java reports those of parsing first"
    if "arraySize cannot be negative" in theirs.message:
        return (
            "removing snapshots that do not exist changes nothing; Java fails where they outnumber the others"
        )
    if not theirs.error and _specs_without_ids(request):
        return "partition fields without ids get the next free one; Java counts from 1000 again"
    if "first-row-id is null" in ours.message and "first-row-id is null" in theirs.message:
        return "a client that does not know of an upgrade to version 3 is told to retry; Java refuses it for good"
    if _readds_what_it_removed(request):
        return "what a request removed is gone for the rest of it; Java still finds it"
    if theirs.message == "Invalid column name: (empty)":
        return "tables can be partitioned and sorted by a column whose name is empty"
    if ours.error and theirs.message.startswith("Cannot truncate type"):
        return "a transform that cannot take its source is a bad request, whichever transform it is"
    if "Cannot parse default as a decimal" in ours.message and not theirs.error:
        return "a default that has more digits than its decimal type is refused; Java counts the scale only"
    if ours.message.startswith("Invalid number of buckets or width: -") and not theirs.error:
        return "a negative width is refused; Java takes the transform for one that it does not know"
    if "must be > 0" in ours.message and ours.message.startswith("Invalid type for") and not theirs.error:
        return "types without digits or bytes are refused; Java reads them, and Spark and Parquet cannot"
    # The metadata log alone shows it, if the clock stood still.
    if problem.startswith((".last-updated-ms", ".metadata-log")) and any(
        map(_ends_in_a_slash, request.updates)
    ):
        return "a location that differs in trailing slashes only is the same, so nothing is changed"
    sets = [update for update in request.updates if update.get("action") == "set-properties"]
    if any(
        not RESERVED_PROPERTIES.isdisjoint(update.get("updates") or update.get("updated") or ())
        for update in sets
    ):
        return "reserved properties steer requests here and are not stored; Java leaves that to its client"
    return None


def _specs_without_ids(request: Request) -> bool:
    specs = [update.get("spec", {}) for update in request.updates if update.get("action") == "add-spec"]
    return any("field-id" not in field for spec in specs for field in spec["fields"])


def _readds_what_it_removed(request: Request) -> bool:
    actions = [str(update.get("action")) for update in request.updates]
    removed = {
        "remove-schemas": ("add-schema", "set-current-schema"),
        "remove-partition-specs": ("add-spec", "set-def"),
    }
    for action, after in removed.items():
        if action in actions and any(later.startswith(after) for later in actions[actions.index(action) :]):
            return True
    return False


def _ends_in_a_slash(update: Json) -> bool:
    return str(update.get("location", "")).endswith("/")
