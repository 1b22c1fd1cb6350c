"""Commands that run a procedure, with an option for each of its parameters: `polaris-spark maintain JOB` and `import`,
and those below `materialized-view`, `branch` and `catalog`."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from polaris_spark.cli.exit_codes import PROBLEMS_FOUND
from polaris_spark.cli.options import (
    AsJSON,
    Password,
    Property,
    Realm,
    Server,
    ServerToken,
    StoreOnly,
    StoreOrServer,
    required_store,
)
from polaris_spark.cli.output import (
    NO_PROBLEMS,
    NO_ROWS,
    NOTHING_TO_DO,
    as_sql,
    grid,
    mapped,
    plain,
    print_json,
    screen,
    tell,
)
from polaris_spark.cli.progress import steps
from polaris_spark.cli.sweep_realms import sweep_realms
from polaris_spark.clock import SystemClock, iso_text
from polaris_spark.errors import InputError, PolarisError
from polaris_spark.jobs.import_catalog import IMPORT
from polaris_spark.jobs.procedure import Call, Parameter, Procedure
from polaris_spark.jobs.registry import procedures
from polaris_spark.names import MAIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polaris_spark.backends.base import Backend
    from polaris_spark.config import Properties

LARGE = 100_000
"""Number of object rows in a store above which a job runs on Spark, unless an option says otherwise."""

app = typer.Typer(
    name="maintain",
    help="Run a maintenance job. One job of a kind runs at a time in a realm.",
    no_args_is_help=True,
    add_completion=False,
)


def _place(
    store: StoreOrServer = None,
    realm: Realm = "default",
    catalog: Annotated[
        str | None,
        typer.Option(help="Catalog; required if there are several.", show_default=False),
    ] = None,
    branch: Annotated[str, typer.Option(help="Branch of the catalog.")] = MAIN,
    property: Property = None,
    master: Annotated[
        str | None,
        typer.Option(
            help="Spark's master; by default, the master in Spark's own configuration, otherwise local[*].",
            show_default=False,
        ),
    ] = None,
    spark: Annotated[
        bool | None,
        typer.Option(
            "--spark/--no-spark",
            help="Run on Spark, or in this process. By default, run on Spark if the store has more than 100,000 rows "
            "of objects, or --master is given.",
            show_default=False,
        ),
    ] = None,
    password: Password = None,
    server: Server = None,
    token: ServerToken = None,
    as_json: AsJSON = False,
) -> None:
    """This function is never called: its signature declares the options that every job command has. `_run` and
    `chosen_server` receive their values."""


_VALUES: Mapping[str, Any] = {
    "STRING": str,
    "BOOLEAN": bool,
    "INT": int,
    "BIGINT": int,
    "DOUBLE": float,
    "TIMESTAMP": datetime,
    "ARRAY<STRING>": list[str],
    "MAP<STRING,STRING>": list[str],
}
"""The Python type of an option, by the SQL type of its parameter."""


def add(procedure: Procedure) -> None:
    """Add a command to `polaris-spark maintain` that runs a procedure."""
    name = procedure.name.replace("_", "-")
    app.command(name)(command_of(procedure, name))


def _takes(procedure: Procedure, option: str) -> bool:
    """Whether the command of a procedure has the option `option`, which is a parameter of `_place`."""
    if option in ("server", "token"):
        return procedure.over_http
    if option in ("catalog", "branch", "property") and procedure.on_realm is not None:
        return False
    if option == "branch":
        return all(one.name != option for one in procedure.parameters)
    if option == "master":
        return procedure.uses_spark or procedure.maintenance
    return option != "spark" or (_takes(procedure, "master") and not procedure.needs_spark)


def command_group(name: str, comment: str, procedures: Mapping[str, Procedure]) -> typer.Typer:
    """Return the command group `name`, whose commands run procedures.

    Args:
        comment: the help text of the group.
        procedures: the procedures, by the names of their commands.
    Raises:
        InputError: as by `command_of`.
    """
    app = typer.Typer(name=name, help=comment, no_args_is_help=True, add_completion=False)
    for typed, procedure in procedures.items():
        app.command(typed)(command_of(procedure, typed))
    return app


def command_of(procedure: Procedure, typed: str) -> Callable[..., None]:
    """Return a function that typer can use as a command, and that runs a procedure. Its options are the parameters of
    the procedure, and the options that all these commands have.

    Args:
        typed: name of the command, for error messages.
    Raises:
        InputError: a parameter of the procedure has the name of an option that all these commands have. A parameter
            `branch` replaces the option `--branch`.
    """
    shared = inspect.signature(_place).parameters
    hints = get_type_hints(_place, include_extras=True)
    if not procedure.over_http:
        hints["store"] = StoreOnly
    reserved = [one.name for one in procedure.parameters if one.name in shared and one.name != "branch"]
    if reserved:
        raise InputError(
            f"the parameter {reserved[0]!r} of the job {procedure.name!r} has the name of an option that every job "
            "command has; rename the parameter"
        )
    own = {one.name: _option(one) for one in procedure.parameters}
    place = [
        one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY)
        for one in shared.values()
        if _takes(procedure, one.name)
    ]

    def command(**given: Any) -> None:
        arguments = {one.name: _argument(one, given.pop(one.name)) for one in procedure.parameters}
        as_json, server, token = (given.pop(name, None) for name in ("as_json", "server", "token"))
        try:
            if server is None:
                given["store"] = required_store(given["store"], token)
                run = _run if procedure.on_realm is None else _run_on_realm
                rows = run(procedure, arguments, **given)
            else:
                from polaris_spark.cli.remote import chosen_server

                remote = chosen_server(server, token, given.pop("catalog", None), **given)
                with steps() as watch:
                    rows = remote.call(procedure, arguments, watch)
        except PolarisError as error:
            error.args = (
                in_options(_named_as_typed(str(error), procedure.name, typed), procedure.parameters),
            )
            raise
        _print(procedure, rows, as_json=bool(as_json))

    command.__doc__ = procedure.comment
    command.__signature__ = inspect.Signature([*place, *own.values()])  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {one.name: one.annotation for one in (*place, *own.values())}
    return command


def _named_as_typed(text: str, name: str, typed: str) -> str:
    """Return an error's text. If it begins with the name of the procedure, replace that by the name of the command."""
    return re.sub(rf"^{name}(?=[: ])", typed, text)


def in_options(text: str, parameters: Sequence[Parameter]) -> str:
    """Return an error's text in which the parameters of a procedure are replaced by the options of its command.

    A parameter is recognized in `name => value`, in `the argument 'name'`, before `is`, and anywhere if its name has an
    underscore.
    """
    for one in sorted(parameters, key=lambda one: -len(one.name)):
        option = f"--{one.name.replace('_', '-')}"
        name = rf"(?<![\w.'-]){one.name}"
        text = re.sub(rf"{name} => true\b", option, text)
        text = re.sub(rf"{name} => ", f"{option} ", text)
        text = text.replace(f"{option} ({option})", option)
        text = text.replace(f"the argument '{one.name}'", option)
        text = re.sub(rf"{name}(?![\w'-])" if "_" in one.name else rf"{name}(?= is\b)", option, text)
    return text


def _option(parameter: Parameter) -> inspect.Parameter:
    name = f"--{parameter.name.replace('_', '-')}"
    flags = f"{name}/--no-{name[2:]}" if parameter.type == "BOOLEAN" else name
    text = f"{parameter.comment[:1].upper()}{parameter.comment[1:]}."
    kind = _VALUES[parameter.type]
    option = typer.Option(flags, help=text, show_default=False)
    annotation: Any = Annotated[kind if parameter.required else kind | None, option]
    default = inspect.Parameter.empty if parameter.required else None
    return inspect.Parameter(
        parameter.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _argument(parameter: Parameter, value: Any) -> Any:
    """Return the procedure's argument for an option's value; None if the option was not given."""
    from polaris_spark.cli.stores import named_texts

    if value is None or value == []:
        return None
    if parameter.type == "TIMESTAMP":
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value
    if parameter.type == "MAP<STRING,STRING>":
        return named_texts(value)  # jobs read the variables, and treat their values as secrets
    return value


def _run(
    procedure: Procedure,
    arguments: Mapping[str, Any],
    *,
    store: str,
    realm: str,
    catalog: str | None,
    branch: str = MAIN,
    property: list[str] | None,
    password: str | None,
    master: str | None = None,
    spark: bool | None = None,
) -> list[tuple[Any, ...]]:
    from polaris_spark.cli.stores import open_store, properties_of
    from polaris_spark.rest.opening import open_session
    from polaris_spark.spark.options import refuse_memory

    if spark is False and master is not None:
        raise InputError(
            "--no-spark runs the job in this process, and --master runs it on Spark: give only one of them"
        )
    given = {"store": store, "realm": realm, "branch": branch, "create": "false"}
    properties = properties_of(given, property, password)
    refuse_memory(properties.store)
    if catalog is None:
        with open_store(store, options=properties.store_options) as opened:
            catalog = opened.realm(realm).catalog(None).name
    properties = properties_of({**given, "catalog": catalog}, property, password)
    started = _Spark(master, _spark_properties(properties, property) if procedure.queries else None)
    try:
        with open_session(properties, SystemClock()) as session, steps() as watch:
            if spark is None:
                spark = procedure.needs_spark or master is not None
                if not spark and not procedure.queries and _takes(procedure, "master"):
                    spark = is_large(session.connection.backend)
            if spark and procedure.by_sql:
                return _rows_by_sql(started.session(), procedure, arguments)
            call = Call(session, started.session if spark else None, watch, by_operator=True)
            return procedure.rows(call, arguments)
    finally:
        started.stop()


def _run_on_realm(
    procedure: Procedure, arguments: Mapping[str, Any], *, store: str, realm: str, password: str | None
) -> list[tuple[Any, ...]]:
    """Run a procedure of the catalogs of a realm, without opening a catalog."""
    from polaris_spark.access.control import AccessControl
    from polaris_spark.catalog.entities.entities import Context
    from polaris_spark.cli.stores import open_store, properties_of
    from polaris_spark.commits.change import Operation
    from polaris_spark.rest.catalog_rules import realm_catalogs
    from polaris_spark.rest.opening import logged_in, os_user

    assert procedure.on_realm is not None
    given = procedure.checked_arguments(arguments)
    properties = properties_of({"store": store, "realm": realm}, None, password)
    with open_store(store, options=properties.store_options) as opened:
        references = opened.writable_realm(realm)
        context = Context.of_realm(references.clock, properties)
        access = AccessControl(references, realm=realm)
        login = logged_in(properties, access, os_user())
        catalogs = realm_catalogs(references, context, Operation(b"", login.name), access, login.roles)
        return list(procedure.on_realm(catalogs, given))


def _rows_by_sql(
    spark: SparkSession, procedure: Procedure, arguments: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Call a procedure of the current catalog of a Spark session in SQL.

    Raises:
        InputError: the procedure failed.
    """
    from polaris_spark.catalog.materialized.snapshot_sql import quoted
    from polaris_spark.jobs.materialized_views.query_engine import message_of

    given = procedure.checked_arguments(arguments)
    listed = ", ".join(f"{name} => {_literal(value)}" for name, value in given.items())
    try:
        name = quoted((spark.catalog.currentCatalog(), "system", procedure.name))
        return [tuple(row) for row in spark.sql(f"CALL {name}({listed})").collect()]
    except Exception as error:  # Spark reports all errors in its own classes
        raise InputError(message_of(error)) from error


def _literal(value: bool | str | Mapping[str, str]) -> str:
    """Return an argument of a procedure in SQL."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return f"map({', '.join(_literal(text) for pair in value.items() for text in pair)})"


def _spark_properties(properties: Properties, named: list[str] | None) -> dict[str, Any]:
    """Return the arguments of `configure` that add a catalog to a Spark session.

    Its name in Spark is the property `spark.catalog`; if that is not set, the name of the catalog.

    Args:
        named: texts `NAME=VALUE` of further catalog properties.
    """
    from polaris_spark.cli.stores import named_properties

    further = named_properties(named or ())
    options = {f"store.{name}": value for name, value in properties.store_options.items()}
    place = {"realm": properties.realm, "branch": properties.branch, "create": "false"}
    return {
        "name": further.pop("spark.catalog", properties.catalog),
        **further,
        **options,
        **place,
        "catalog": properties.catalog,
        "store": str(properties.store),
    }


def _print(procedure: Procedure, rows: list[tuple[Any, ...]], *, as_json: bool) -> None:
    names = [column.name for column in procedure.columns]
    if as_json:
        print_json([mapped(_named(dict(zip(names, row, strict=True))), _json) for row in rows])
    elif rows and not (procedure.idle is not None and all(map(procedure.idle, rows))):
        _show(names, rows)
    else:
        screen().print(_nothing(procedure))
    failure = procedure.failure(rows) if procedure.failure is not None else None
    if failure is not None:
        raise InputError(failure)
    if rows and procedure.finds_faults:
        raise typer.Exit(PROBLEMS_FOUND)


def _nothing(procedure: Procedure) -> str:
    if procedure.finds_faults:
        return NO_PROBLEMS
    return NO_ROWS if procedure.queries and not (procedure.needs_spark or procedure.by_sql) else NOTHING_TO_DO


def is_large(backend: Backend, limit: int = LARGE) -> bool:
    """Whether a store has more than `limit` object rows, which are too many to read in one process. Stop reading as
    soon as this is known."""
    rows = 0
    for split in backend.splits("objects", None, 1):
        for batch in backend.scan_sizes(split, 0):
            rows += batch.num_rows
            if rows > limit:
                return True
    return False


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a procedure's row as a JSON object. Column names have dashes instead of underscores, and instead of the
    column `table` there is `name`, the table's name in SQL syntax."""
    dashed = {name.replace("_", "-"): value for name, value in row.items() if name != "table"}
    if "table" not in row:
        return dashed
    return {"name": None if row["table"] is None else as_sql(row["table"]), **dashed}


def _show(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    counts = {name for i, name in enumerate(names) if all(_is_number(row[i]) for row in rows)}
    table = grid(
        None, *(name.replace("_", " ") for name in names), right=tuple(n.replace("_", " ") for n in counts)
    )
    for row in rows:
        table.add_row(*(_cell(cell) for cell in row))
    screen().print(table)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(value: Any) -> str:
    """Return a value as text to display."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}"
    if isinstance(value, dict):
        return plain(", ".join(f"{name} = {text}" for name, text in value.items()))
    return plain(str(_json(value)))


def _json(value: Any) -> Any:
    return iso_text(int(value.timestamp() * 1_000)) if isinstance(value, datetime) else value


class _Spark:
    """The Spark session of a command. It is started at first use."""

    def __init__(self, master: str | None, catalog: Mapping[str, Any] | None) -> None:
        """
        Args:
            catalog: arguments of `configure`, if the session needs the catalog. It is then the current catalog.
        """
        self._master = master
        self._catalog = catalog
        self._started: SparkSession | None = None

    def session(self) -> SparkSession:
        if self._started is None:
            from pyspark.sql import SparkSession

            from polaris_spark.spark.session import configure, use_this_python_in_local_workers

            builder = SparkSession.builder.appName("polaris-spark")
            if self._master:
                builder = builder.master(self._master)
            use_this_python_in_local_workers(builder)
            if "PYSPARK_GATEWAY_PORT" not in os.environ:
                builder = builder.config("spark.ui.enabled", "false")
                builder = builder.config("spark.ui.showConsoleProgress", "false")  # the command shows its own
            if self._catalog is not None:
                builder = configure(builder, **self._catalog)
            self._started = builder.getOrCreate()
            if self._catalog is not None:
                self._started.catalog.setCurrentCatalog(self._catalog["name"])
        return self._started

    def stop(self) -> None:
        if self._started is not None:
            self._started.stop()


for _procedure in procedures().values():
    if _procedure.maintenance:
        try:
            add(_procedure)
        except InputError as error:  # from another package's procedure: the other commands work without it
            tell(str(error))

app.command("sweep-realms")(sweep_realms)

import_catalog = command_of(IMPORT, "import")
"""The function of the command `polaris-spark import`."""
