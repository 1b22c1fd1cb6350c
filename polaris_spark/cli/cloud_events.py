"""Changes as CloudEvents 1.0 (https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md)."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from polaris_spark.cli.delivery import Event
from polaris_spark.cli.output import plain
from polaris_spark.clock import iso_time_ms
from polaris_spark.errors import MissingLibraryError

Json = dict[str, Any]

TYPE_PREFIX = "io.polarisspark."
"""First part of the type of an event. The action of the change follows, such as `create-table`."""

STRUCTURED = "application/cloudevents+json"
"""Media type of one event."""

BATCHED = "application/cloudevents-batch+json"
"""Media type of a JSON array of events."""


def require_libraries() -> None:
    """Check that the libraries of the extra `events` are installed.

    Raises:
        MissingLibraryError: one is missing.
    """
    try:
        import cloudevents.core.formats.json  # noqa: F401  # only whether it is there
        import standardwebhooks  # noqa: F401  # the same
    except ImportError as error:
        raise MissingLibraryError(
            f"CloudEvents need the library {error.name}, which is not installed: pip install "
            "'polaris-spark[events]'"
        ) from error


def source_of(catalog: str, branch: str) -> str:
    """Return the default source of events: a URI reference that names a branch."""
    return f"/catalogs/{quote(catalog, safe='')}/branches/{quote(branch, safe='')}"


def event_of(change: Json, source: str) -> Event:
    """Return a change as an event.

    Args:
        change: a change as `catalog.branches.change_log.changes_after` returns it.
        source: URI reference of the branch.
    """
    from cloudevents.core.formats.json import JSONFormat
    from cloudevents.core.v1.event import CloudEvent

    attributes = {
        "id": change["position"],
        "source": source,
        "type": TYPE_PREFIX + change["action"],
        "subject": plain(change["name"]),
        "time": datetime.fromtimestamp(iso_time_ms(change["commit"]["time"]) / 1_000, timezone.utc),
        "datacontenttype": "application/json",
    }
    return Event(change["position"], JSONFormat().write(CloudEvent(attributes, change)))


def batch_of(events: list[Event]) -> bytes:
    """Return events as a JSON array, in the format for batches."""
    return b"[" + b",".join(event.text for event in events) + b"]"
