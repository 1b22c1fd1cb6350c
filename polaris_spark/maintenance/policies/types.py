"""The types of policies, and the schemas of their contents. Both come from Apache Polaris
(https://polaris.apache.org/in-dev/unreleased/policy/)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from polaris_spark.catalog.entities.properties import MAX_REF_AGE, MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS
from polaris_spark.errors import BadRequestError, InputError
from polaris_spark.maintenance.queue.timing import check_duration
from polaris_spark.property_values import duration_ms

DAY_MS: Final = 86_400_000
DEFAULT_INTERVAL_MS: Final = DAY_MS
"""Interval at which workers carry out a policy, in milliseconds, unless its `config` has an `interval`."""
MAX_CONTENT_BYTES: Final = 32_768
"""Maximum size of the content of a policy, in bytes."""
LEAST_INTERVAL_MS: Final = 60_000
"""Minimum `interval` of a policy, in milliseconds. There is a minimum because the author of a single policy decides how
often a job of the whole catalog runs."""
INTERVAL: Final = "interval"
"""Key in `config`: the interval at which workers carry out the policy, such as `6 h`."""
_MOST_DAYS = 36_500

Days = Annotated[float, msgspec.Meta(ge=0, le=_MOST_DAYS)]


class SnapshotExpiryConfig(msgspec.Struct, frozen=True):
    """The keys in the `config` of a policy of snapshot expiry that `expire` uses."""

    min_snapshot_to_keep: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    max_snapshot_age_days: Days | None = None
    max_ref_age_days: Days | None = None


class OrphanConfig(msgspec.Struct, frozen=True):
    """The keys in the `config` of a policy of orphan removal that `remove_orphans` uses."""

    prefix_mismatch_mode: Literal["error", "ignore", "delete"] | None = None


class MaintenanceContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a maintenance policy: whether it is enabled, and its settings."""

    enable: bool
    version: Literal["2025-02-03"] = "2025-02-03"
    config: dict[str, str | int | float | bool] = {}

    @property
    def interval_ms(self) -> int:
        """Interval at which workers carry out the policy, in milliseconds."""
        found = self.config.get(INTERVAL)
        return DEFAULT_INTERVAL_MS if found is None else duration_ms(INTERVAL, str(found))


class OrphanContent(MaintenanceContent, frozen=True, forbid_unknown_fields=True):
    """Content of a policy of orphan removal."""

    max_orphan_file_age_in_days: Annotated[int, msgspec.Meta(ge=0, le=_MOST_DAYS)] | None = None
    locations: list[Annotated[str, msgspec.Meta(min_length=1)]] = []


class AccessContent(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Content of a policy of access control. It is a hint for engines."""

    principal_role: str | None = None
    column_projections: list[str] = []
    row_filters: list[Any] = []
    version: Literal["2025-02-03"] = "2025-02-03"


class PolicyType(NamedTuple):
    """A type of policy: its name, the form of its content, and the job that carries it out."""

    name: str
    content: type[MaintenanceContent] | type[AccessContent]
    config: type[msgspec.Struct] | None = None
    """Keys of `config` whose values are checked."""
    is_inheritable: bool = True
    """Whether a policy applies to everything in its target, unless something there has another policy of the type."""
    job: str = ""
    """Procedure that carries out policies of this type; empty if there is none."""


SNAPSHOT_EXPIRY: Final = "system.snapshot-expiry"
ORPHAN_REMOVAL: Final = "system.orphan-file-removal"

TYPES: Final = {
    one.name: one
    for one in (
        PolicyType("system.data-compaction", MaintenanceContent),
        PolicyType("system.metadata-compaction", MaintenanceContent),
        PolicyType(ORPHAN_REMOVAL, OrphanContent, OrphanConfig, job="remove_orphans"),
        PolicyType(SNAPSHOT_EXPIRY, MaintenanceContent, SnapshotExpiryConfig, job="expire"),
        PolicyType("system.access-control", AccessContent, is_inheritable=False),
    )
}
"""All types of policies, by name."""


def type_of(name: str) -> PolicyType:
    """Return a type of policies.

    Raises:
        BadRequestError: there is no such type; the message lists the types.
    """
    found = TYPES.get(name)
    if found is None:
        raise BadRequestError(
            f"there is no type of policies {name[:80]!r}; the types are: {', '.join(TYPES)}"
        )
    return found


def parsed(type_name: str, content: str) -> MaintenanceContent | AccessContent:
    """Parse and check the content of a policy.

    Raises:
        BadRequestError: the content does not fit the schema of the type.
    """
    kind = type_of(type_name)
    try:
        if len(content.encode()) > MAX_CONTENT_BYTES:
            raise BadRequestError(f"the content of the policy has more than {MAX_CONTENT_BYTES} bytes")
        found = msgspec.json.decode(content, type=kind.content)
        if isinstance(found, MaintenanceContent):
            if kind.config is not None:
                msgspec.convert(found.config, kind.config)
            if found.interval_ms < LEAST_INTERVAL_MS:
                raise BadRequestError(f"{INTERVAL!r} in the config of the policy must be at least 1 min")
            check_duration(INTERVAL, found.interval_ms)
        elif not found.column_projections and not found.row_filters:
            raise BadRequestError("the content of the policy needs 'columnProjections' or 'rowFilters'")
    except (msgspec.MsgspecError, InputError, UnicodeError, RecursionError) as error:
        raise BadRequestError(f"the content does not fit the schema of {type_name}: {error}") from error
    return found


def expiry_properties(content: MaintenanceContent) -> dict[str, str]:
    """Return the table properties that have the same effect as a policy for snapshot expiry."""
    config = msgspec.convert(content.config, SnapshotExpiryConfig)
    found: dict[str, float | int | None] = {
        MIN_SNAPSHOTS: config.min_snapshot_to_keep,
        MAX_SNAPSHOT_AGE: None
        if config.max_snapshot_age_days is None
        else config.max_snapshot_age_days * DAY_MS,
        MAX_REF_AGE: None if config.max_ref_age_days is None else config.max_ref_age_days * DAY_MS,
    }
    return {name: str(int(number)) for name, number in found.items() if number is not None}
