"""Bodies of the extension's requests and answers."""

from __future__ import annotations

from typing import Any

from polaris_spark.rest.messages import ErrorModel, Message


class Driver(Message, frozen=True, rename=None, gc=False):
    """How to reach the Spark session of a call: see `polaris_spark.jobs.driver.Driver`."""

    call: str
    port: int
    secret: str


class CallRequest(Message, frozen=True, gc=False):
    """A call of a procedure."""

    arguments: dict[str, Any] | None = None
    """Arguments by name. Times are microseconds since 1970, UTC."""
    id: str | None = None
    """Id of the run, chosen by the client. Sending a request with the same id again does not start another run."""
    wait_seconds: float | None = None
    """Time to wait for the end of the run, in seconds. Without it, a local caller waits until the run ends."""
    driver: Driver | None = None
    """Access to a Spark session; only for local callers."""


class Parameter(Message, frozen=True, omit_defaults=False, gc=False):
    """A parameter of a procedure."""

    name: str
    type: str
    comment: str
    required: bool


class Column(Message, frozen=True, omit_defaults=False, gc=False):
    """A column of a result."""

    name: str
    type: str


class Procedure(Message, frozen=True, omit_defaults=False, gc=False):
    """The description of a procedure."""

    name: str
    comment: str
    uses_spark: bool
    """Whether the procedure may use a Spark session."""
    over_http: bool
    """Whether HTTP clients may call the procedure."""
    parameters: list[Parameter]
    columns: list[Column]


class ProceduresResponse(Message, frozen=True, gc=False):
    """Every procedure."""

    procedures: list[Procedure]


class Progress(Message, frozen=True, omit_defaults=False, gc=False):
    """The current step of a run, the amount done, and the total amount (0 if it is not known)."""

    step: str
    done: int
    total: int


class RunResponse(Message, frozen=True, gc=False):
    """A run of a procedure."""

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
    """The remembered runs that the caller may see, without their rows."""

    runs: list[RunResponse]


class ViewsResponse(Message, frozen=True, gc=False):
    """The names of the system views."""

    views: list[str]


class ViewResponse(Message, frozen=True, gc=False):
    """The description of a system view."""

    name: str
    comment: str
    schema: dict[str, Any]
    """Columns, as Spark writes a schema in JSON. The metadata of a field contains the comment."""


class ViewOptions(Message, frozen=True, gc=False):
    """Options of a system view, by name."""

    options: dict[str, str]


class PlanRequest(Message, frozen=True, gc=False):
    """A request for the partitions of a scan."""

    options: dict[str, str]
    columns: list[str]
    filters: list[list[Any]]
    """Name of a class in `pyspark.sql.datasource`, column and value of each filter."""
