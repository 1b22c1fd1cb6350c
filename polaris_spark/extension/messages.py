"""Bodies of the extension's requests and responses."""

from __future__ import annotations

from typing import Any

import msgspec

from polaris_spark.rest.messages import ErrorModel, Message


class Driver(Message, frozen=True, rename=None, gc=False):
    """Access of a procedure to the Spark session of its caller: the id under which the JVM keeps that session (`call`),
    and port and secret of the JVM's Py4J gateway. `polaris_spark.jobs.driver.Driver` uses these values."""

    call: str
    port: int
    secret: str


class CallRequest(Message, frozen=True, gc=False):
    """A request to call a procedure."""

    arguments: dict[str, Any] | None = None
    """Arguments by name. Times are microseconds since 1970, UTC."""
    id: str | None = None
    """Id of the run, chosen by the client. A repeated request with the same id does not start another run."""
    wait_seconds: float | None = None
    """Maximum time that the response waits for the end of the run, in seconds. If None, the response to a local caller
    waits until the run ends, and the response to an HTTP client does not wait."""
    driver: Driver | None = None
    """Access to the caller's Spark session; only for local callers."""


class Parameter(Message, frozen=True, omit_defaults=False, gc=False):
    """Name, type and description of a parameter of a procedure."""

    name: str
    type: str
    comment: str
    required: bool


class Column(Message, frozen=True, omit_defaults=False, gc=False):
    """Name and type of a column of a procedure's result."""

    name: str
    type: str


class Procedure(Message, frozen=True, omit_defaults=False, gc=False):
    """The description of a procedure."""

    name: str
    comment: str
    uses_spark: bool
    """Whether the procedure uses the caller's Spark session, if there is one."""
    over_http: bool
    """Whether HTTP clients are allowed to call the procedure."""
    switches: bool
    """Whether the first value of the result is the state of the catalog that the caller's session uses from then on."""
    parameters: list[Parameter]
    columns: list[Column]


class ProceduresResponse(Message, frozen=True, gc=False):
    """The descriptions of all procedures."""

    procedures: list[Procedure]


class Progress(Message, frozen=True, omit_defaults=False, gc=False):
    """Progress of a run: its current step, the amount of work done in the step, and the step's total amount of work (0
    if the total is not known)."""

    step: str
    done: int
    total: int


class RunResponse(Message, frozen=True, gc=False):
    """A run of a procedure: its status, and its progress, its result or its error."""

    id: str
    procedure: str
    principal: str
    status: str
    """`running`, `succeeded`, `failed` or `cancelled`."""
    started_ms: int
    """Start of the run, in milliseconds since 1970."""
    progress: Progress | None = None
    columns: list[Column] | None = None
    rows: list[list[Any]] | None = None
    """A page of the result, in the order of `columns`. Times are microseconds since 1970, UTC."""
    next_page_token: str | None = None
    error: ErrorModel | None = None


class RunsResponse(Message, frozen=True, gc=False):
    """The runs that the caller is allowed to see, without the rows of their results. The oldest ended runs are missing,
    because a session remembers a limited number."""

    runs: list[RunResponse]


class ViewsResponse(Message, frozen=True, gc=False):
    """The names of the system views."""

    views: list[str]


class ViewResponse(Message, frozen=True, gc=False):
    """The description of a system view."""

    name: str
    comment: str
    schema: dict[str, Any]
    """The columns, in Spark's JSON form of a schema. The metadata of a field contains the column's comment."""


class ViewOptions(Message, frozen=True, gc=False):
    """A request that contains only the options of a system view, by name."""

    options: dict[str, str]


class PlanRequest(Message, frozen=True, gc=False):
    """A request to plan the scan of a system view: the response lists the partitions to read."""

    options: dict[str, str]
    columns: list[str]
    filters: list[list[Any]]
    """Each filter is a list: name of the filter's class in `pyspark.sql.datasource`, name of the column, value."""


class ChangesResponse(Message, frozen=True, omit_defaults=False, gc=False):
    """Changes of a branch after a position."""

    catalog: str
    branch: str
    changes: list[dict[str, Any]]
    """The changes, oldest first, as `polaris-spark log --json` prints them. Each has its commit as `commit`, and the
    position after the change as `position`."""
    next: str
    """Position after these changes: the next value of `after`."""


class ReadRequest(Message, frozen=True, gc=False):
    """A request that asks how to read a materialized view."""

    uuid: str
    """UUID of the view that the engine has loaded."""
    version_id: int
    """Version of the view that the engine has loaded."""
    session: dict[str, str]
    """Settings of the session on which results of queries depend."""
    catalog: str = ""
    """Name under which the engine knows the catalog; by default, the name of the catalog."""
    outside: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Tables and views outside of the catalog that the engine has looked up, because an answer listed them as
    `unknown`. Each object has the fields of the result of `outside_sources.Describe`, and `parts`, the levels of the
    full name."""


class ReadResponse(Message, frozen=True, omit_defaults=False, gc=False):
    """How to read a materialized view."""

    query: str | None
    """Query in Spark's SQL that returns the stored rows; null if they must not be used."""
    refreshable: bool
    """Whether the stored rows can be used after a refresh."""
    reason: str
    """Why the stored rows are not used; empty if they are."""
    recursion: str = ""
    """The views through which the view reads itself, so that its query cannot be run; empty if it does not."""
    unknown: list[list[str]] = msgspec.field(default_factory=list)
    """Full names of tables and views outside of the catalog on which the answer depends. The engine looks them up and
    asks again."""


class AsOfRequest(Message, frozen=True, gc=False):
    """A request that asks how to read an earlier state of a materialized view. Exactly one field is set."""

    version: str | None = None
    """Id of a snapshot of the storage table, id of a refresh, or a branch or tag of the storage table."""
    timestamp_us: int | None = None
    """A time, in microseconds since 1970 UTC."""


class AsOfResponse(Message, frozen=True, omit_defaults=False, gc=False):
    """Where the rows of an earlier refresh of a materialized view are: a snapshot of its storage table."""

    snapshot_id: int
    """Snapshot of the storage table."""
    columns: list[str]
    """Columns of the view then. The snapshot can have further columns."""
