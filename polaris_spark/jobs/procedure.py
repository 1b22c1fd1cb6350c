"""Definition of a procedure (name, parameters, result columns and function), and of a call of a procedure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.access.needs import UNDECLARED, Needs
from polaris_spark.errors import InputError, TryAgainError
from polaris_spark.jobs.types import TYPES
from polaris_spark.secret_options import REFERENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polaris_spark.catalog.catalogs.realm_catalogs import RealmCatalogs
    from polaris_spark.rest.session import Session
    from polaris_spark.system.tasks import HeldTask


class Parameter(NamedTuple):
    """A parameter of a procedure. If an optional argument is not given or is NULL, `run` does not receive it."""

    name: str
    type: str
    """SQL name of the type, a key of `TYPES`."""
    comment: str
    required: bool = False
    takes_variables: bool = True
    """Whether values of a map may refer to environment variables, as `env:NAME`. If False, the procedure itself must
    refuse such references."""
    is_location: bool = False
    """Whether the value is a location of files. HTTP clients may use only the locations that the server allows."""


class Column(NamedTuple):
    """A column of the result of a procedure."""

    name: str
    type: str
    """SQL name of the type, a key of `TYPES`."""


def columns(text: str) -> tuple[Column, ...]:
    """Return the columns of a list as in SQL, such as `name STRING, details MAP<STRING,STRING>`."""
    return tuple([Column(*one.split(" ")) for one in text.split(", ")])


IF_EXISTS = Parameter("if_exists", "BOOLEAN", "whether to do nothing if it does not exist")
IF_NOT_EXISTS = Parameter("if_not_exists", "BOOLEAN", "whether to do nothing if it exists")

Watch = Callable[[str, int, int], None]
"""A function that receives the progress of a call: the current step, the amount of it that is done, and its total
amount (0 if not known)."""


class Call:
    """One running call of a procedure."""

    def __init__(
        self,
        session: Session,
        spark: Callable[[], SparkSession] | None = None,
        watch: Watch | None = None,
        *,
        by_operator: bool = False,
        over_http: bool = False,
        answers_spark: bool = False,
    ) -> None:
        """
        Args:
            session: the opened catalog.
            spark: returns the Spark session that made the call; None if the call comes without Spark.
            watch: called with the progress of the call, in the thread of the call.
            by_operator: whether the arguments come from the operator of this process. The arguments may then refer to
                any environment variable of the process.
            over_http: whether the arguments come from an HTTP client. The arguments then cannot refer to environment
                variables.
            answers_spark: whether this process answers the requests that the Spark session sends to the catalog. If so,
                the session can also read states that exist only in this process.
        """
        self.session = session
        """The opened catalog."""
        self.held: HeldTask | None = None
        """The task lease that a running maintenance job holds; None for other calls."""
        self.may_end_realm = False
        """Whether the procedure itself can end the service of the realm, and then has more to do."""
        self.over_http = over_http
        """Whether the arguments come from an HTTP client, which may access only the served realm."""
        self.answers_spark = answers_spark
        """Whether this process answers the requests that the Spark session of the call sends to the catalog."""
        self.by_operator = by_operator
        """Whether the arguments come from the operator of this process."""
        self.is_recorded = False
        """Whether the caller records the run in the history of runs, so that a job does not."""
        self._spark = spark
        self._watch = watch
        self._cancelled = threading.Event()

    @property
    def has_spark(self) -> bool:
        """Whether the call has a Spark session."""
        return self._spark is not None

    @property
    def has_executors(self) -> bool:
        """Whether Spark's executors, which are other processes, can read the store."""
        return self.has_spark and self.session.connection.backend.scope != "process"

    def spark(self) -> SparkSession:
        """Return the Spark session that made the call. Only procedures with `uses_spark` may call this method.

        Raises:
            InputError: the procedure was called without Spark.
        """
        if self._spark is None:
            raise InputError(
                "this procedure runs as a Spark job, but was called without a Spark session: call it in SQL, or pass "
                "the session as the argument 'spark'"
            )
        return self._spark()

    def refuse_unlisted_variables(self, options: Mapping[str, str]) -> None:
        """Refuse options with a value `env:NAME` if the caller may not use the environment variable NAME.

        Before a procedure runs, `Procedure.rows` calls this method for every argument that is a map and whose parameter
        has `takes_variables`. If the arguments come from the operator of this process, every variable is allowed.

        Raises:
            InputError: the catalog's property `procedure-variables` does not list the variable, or the arguments come
                from an HTTP client.
        """
        from polaris_spark.config import refuse_unlisted_variables

        if self.over_http:
            for name, value in options.items():
                if value.startswith(REFERENCE):
                    raise InputError(
                        f"the option {name!r} is {value[:200]!r}; HTTP clients cannot name environment "
                        "variables of the server"
                    )
        elif not self.by_operator:
            listed = self.session.properties.procedure_variables or ()
            refuse_unlisted_variables(options, listed, "the catalog's property 'procedure-variables'")

    def require_allowed(self, location: str) -> None:
        """Refuse a location that is outside the allowed locations of the catalog, if the catalog restricts locations.

        Raises:
            InputError: the location is malformed.
            ForbiddenError: the location is outside the allowed locations of the session's catalog.
        """
        from polaris_spark.catalog.files.locations import folder, segments

        self.session.catalog.context.require_allowed([segments(folder(location))])

    @property
    def is_cancelled(self) -> bool:
        """Whether the procedure was asked to stop."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ask the procedure to stop at its next `check`. This method can be called on any thread."""
        self._cancelled.set()

    def check(self) -> None:
        """Raise an error if the call was cancelled, or the realm can no longer be used. Long procedures call this
        method between steps.

        Raises:
            RealmStateError: the realm was deactivated, moved or purged.
            TryAgainError: the call was cancelled, because its caller no longer waits for it.
        """
        if self._cancelled.is_set():
            raise TryAgainError("the call was cancelled; steps that are already completed are not undone")
        if not self.may_end_realm:
            self.session.serving.require()

    def progress(self, doing: str, done: int = 0, total: int = 0) -> None:
        """Report the progress of the call, and call `check`. Long procedures call this method often.

        Args:
            doing: the current step, such as `reading manifests`.
            done: amount of the step that is done.
            total: total amount of the step; 0 if it is not known.
        Raises:
            TryAgainError: the call was cancelled, because its caller no longer waits for it.
            TaskLostError: another process took over the lease of the maintenance job.
        """
        self.check()
        if self.held is not None:
            self.held.tell(doing, done, total)
        if self._watch is not None:
            self._watch(doing, done, total)


Run = Callable[[Call, Mapping[str, Any]], Iterable[tuple[Any, ...]]]
"""A function that runs a procedure: it takes checked arguments by name, and returns the rows of the result."""


@dataclass(frozen=True)
class Procedure:
    """A procedure of namespace `system`, called as ``CALL polaris.system.<name>(<parameter> => <value>, ...)``.

    Raises:
        InputError: a name is not a lower-case SQL identifier or occurs twice, a type is unknown, there are no columns,
            or a required parameter follows an optional parameter.
    """

    name: str
    parameters: tuple[Parameter, ...]
    """Parameters in the order of positional arguments; required parameters come first."""
    columns: tuple[Column, ...]
    run: Run
    comment: str = ""
    """Description of the procedure, in one sentence."""
    uses_spark: bool = False
    """Whether `run` may use the Spark session."""
    needs_spark: bool = False
    """Whether `run` fails without a Spark session."""
    queries: bool = False
    """Whether `run` queries the catalog in the Spark session, if it has one. The session then needs the catalog."""
    by_sql: bool = False
    """Whether the command line calls the procedure by SQL if it has a Spark session. The procedure then runs in the
    process that answers the session's requests (`Call.answers_spark`)."""
    on_realm: Callable[[RealmCatalogs, Mapping[str, Any]], Iterable[tuple[Any, ...]]] | None = None
    """For a procedure of the catalogs of a realm: a function that does the work of `run`, given the catalogs. The
    command line calls it, because there may be no catalog that a session can open."""
    over_http: bool = False
    """Whether HTTP clients with an administrator's token may call the procedure. The server runs the procedure in its
    own process, so the procedure must not open files, stores or addresses that its arguments name, except locations in
    parameters with `is_location`."""
    maintenance: bool = False
    """Whether the procedure is a maintenance job, which `polaris-spark maintain` can run."""
    finds_faults: bool = False
    """Whether each row of the result reports a fault. If so, the command line exits with a failure status when there
    are rows."""
    only_reads: bool = False
    """Whether the procedure can be called in a catalog that shows a state of the past: it changes nothing, and deletes
    no files."""
    rotates: bool = False
    """Whether a principal that must rotate its credentials may call the procedure."""
    switches: bool = False
    """Whether the first value of the result is the state of the catalog (`catalog.branches.states`) that the caller's
    Spark session uses from then on."""
    idle: Callable[[tuple[Any, ...]], bool] | None = None
    """A function that returns whether a row of the result only reports that there was nothing to do."""
    needs: Needs = UNDECLARED
    """The privileges that a caller needs in a realm with access control. If a need has a `parameter`, the privilege is
    needed on the branch, namespace, table or view that the caller passes for this parameter."""
    failure: Callable[[list[tuple[Any, ...]]], str | None] | None = None
    """A function that takes the rows of the result, and returns the error message with which the command line ends
    after showing the rows. It returns None for success."""

    def __post_init__(self) -> None:
        typed: list[Parameter | Column] = [*self.parameters, *self.columns]
        for name in (self.name, *(one.name for one in typed)):
            if not name.isidentifier() or name != name.lower():
                raise InputError(f"procedure {self.name!r}: {name!r} is not a lower-case SQL identifier")
        for one in typed:
            if one.type not in TYPES:
                raise InputError(f"procedure {self.name!r}: {one.name!r} has unknown type {one.type!r}")
        for names in ([one.name for one in self.parameters], [one.name for one in self.columns]):
            if len(set(names)) < len(names):
                raise InputError(
                    f"procedure {self.name!r} has two parameters or columns with the same name: {names}"
                )
        if not self.columns:
            raise InputError(f"procedure {self.name!r} has no columns")
        required = [one.required for one in self.parameters]
        if required != sorted(required, reverse=True):
            raise InputError(
                f"procedure {self.name!r}: required parameters must come before optional parameters"
            )

    def checked_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check the types of the given arguments. Return the arguments that are not None.

        Raises:
            InputError: an argument is unknown, missing or of another type; the message says what is accepted.
        """
        known = {one.name: one for one in self.parameters}
        unknown = [name for name in given if name not in known]
        if unknown:
            there = ", ".join(known) or "none"
            raise InputError(f"{self.name} has no parameter {unknown[0]!r}; its parameters are: {there}")
        arguments = {name: value for name, value in given.items() if value is not None}
        for one in self.parameters:
            if one.name not in arguments:
                if one.required:
                    what = "NULL" if one.name in given else "missing"
                    raise InputError(f"{self.name}: the argument {one.name!r} is {what}; it is required")
            elif not TYPES[one.type].accepts(arguments[one.name]):
                raise InputError(
                    f"{self.name}: the argument {one.name!r} is {repr(arguments[one.name])[:200]}; "
                    f"it must be {TYPES[one.type].expected} ({one.type})"
                )
        return arguments

    def check_values(self, call: Call, arguments: Mapping[str, Any]) -> dict[bytes, int]:
        """Raise an error if the caller lacks a privilege on something that an argument names, or may not use an
        environment variable or location in an argument.

        Call `checked_arguments` first.

        Returns:
            the checked names, with their entity ids (see `jobs.permission.require_needs`). Raises:
            InputError: the caller may not use an environment variable in an argument, or a location is malformed.
            ForbiddenError: the caller lacks a privilege, or a location is outside the allowed locations of the catalog.
            NotFoundError: the caller may not see what an argument names.
            NotAuthorizedError: the principal is not active.
        """
        from polaris_spark.jobs.permission import require_needs  # slow to import, so only if a procedure runs

        names = require_needs(call.session, self.needs, arguments, rotating=self.rotates)
        for one in self.parameters:
            if one.type == "MAP<STRING,STRING>" and one.takes_variables:
                call.refuse_unlisted_variables({k: v or "" for k, v in arguments.get(one.name, {}).items()})
            if one.is_location and one.name in arguments:
                call.require_allowed(arguments[one.name])
        return names

    def rows(self, call: Call, arguments: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run the procedure; return the rows of its result.

        Raises:
            InputError: an argument is not valid, or the caller may not use an environment variable in it.
            ForbiddenError: a location is outside the allowed locations of the catalog; or the catalog shows a state of
                the past, and the procedure may change something.
            TypeError: the procedure has a bug: a row does not match the columns.
        """
        given = self.checked_arguments(arguments)
        call.session.serving.require()
        names = self.check_values(call, given)
        if names:  # a name that another entity gets meanwhile is refused
            call.session = call.session.derive(catalog=call.session.catalog.resolving(names.items()))
        if not self.only_reads:
            call.session.catalog.require_present()
        rows = list(self.run(call, given))
        checks = [TYPES[column.type].accepts for column in self.columns]
        for row in rows:
            if len(row) != len(checks):
                raise TypeError(f"procedure {self.name} returned {len(row)} values for {len(checks)} columns")
            for column, accepts, value in zip(self.columns, checks, row, strict=True):
                if value is not None and not accepts(value):
                    raise TypeError(
                        f"procedure {self.name} returned {value!r} in column {column.name}, whose type is {column.type}"
                    )
        return rows
