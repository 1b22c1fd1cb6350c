"""`polaris-spark maintain JOB`: the maintenance jobs, each with options that are its procedure's parameters."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from polaris_spark.cli.opening import named_texts, properties_of
from polaris_spark.cli.options import AsJSON, Password, Property, Realm, Store
from polaris_spark.cli.output import errors, grid, iso, mapped, plain, print_json, screen
from polaris_spark.clock import SystemClock
from polaris_spark.errors import InputError
from polaris_spark.rest.session import open_session
from polaris_spark.spark.options import refuse_memory
from polaris_spark.spark.procedures.procedure import Call, Parameter, Procedure, Watch
from polaris_spark.spark.procedures.registry import procedures
from polaris_spark.spark.session import use_this_python_in_local_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAULTS_FOUND = 1
"""Exit code of a job that looks for faults and found some."""

app = typer.Typer(
    name="maintain",
    help="Run a maintenance job; of each kind, one at a time runs in a realm, whoever started it.",
    no_args_is_help=True,
)


def _place(
    store: Store,
    realm: Realm = "default",
    catalog: Annotated[str, typer.Option(help="Catalog of the realm.")] = "polaris",
    branch: Annotated[str, typer.Option(help="Branch of the catalog.")] = "main",
    property: Property = None,
    master: Annotated[
        str | None,
        typer.Option(
            help="Spark's master; that of Spark's own configuration, else local[*].", show_default=False
        ),
    ] = None,
    no_spark: Annotated[
        bool, typer.Option("--no-spark", help="Run in this process alone: for stores of moderate size.")
    ] = False,
    password: Password = None,
    as_json: AsJSON = False,
) -> None:
    """The options that every job has; see `_run`."""


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
"""What an option of a parameter's type holds."""


def add(procedure: Procedure) -> None:
    """Make a job a command."""
    shared = inspect.signature(_place).parameters
    hints = get_type_hints(_place, include_extras=True)
    reserved = [one.name for one in procedure.parameters if one.name in shared]
    if reserved:
        raise InputError(
            f"the job {procedure.name!r} has a parameter {reserved[0]!r}, which every command has"
        )
    own = {one.name: _option(one) for one in procedure.parameters}
    place = [one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY) for one in shared.values()]

    def command(**given: Any) -> None:
        arguments = {one.name: _argument(one, given.pop(one.name)) for one in procedure.parameters}
        _run(procedure, arguments, **given)

    command.__doc__ = procedure.comment
    command.__signature__ = inspect.Signature([*place, *own.values()])  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {one.name: one.annotation for one in (*place, *own.values())}
    app.command(procedure.name.replace("_", "-"))(command)


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
    """What the procedure gets of an option; None where it was not given."""
    if value is None or value == []:
        return None
    if parameter.type == "TIMESTAMP":
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value
    if parameter.type == "MAP<STRING,STRING>":
        return named_texts(value)  # jobs look variables up themselves, and know secrets by them
    return value


def _run(
    procedure: Procedure,
    arguments: Mapping[str, Any],
    *,
    store: str,
    realm: str,
    catalog: str,
    branch: str,
    property: list[str] | None,
    master: str | None,
    no_spark: bool,
    password: str | None,
    as_json: bool,
) -> None:
    if no_spark and master is not None:
        raise InputError("--no-spark runs the job in this process, --master on Spark: give one of them")
    given = {"store": store, "realm": realm, "catalog": catalog, "branch": branch, "create": "false"}
    properties = properties_of(given, property, password)
    refuse_memory(properties.store)
    spark = _Spark(master)
    try:
        with open_session(properties, SystemClock()) as session, _bars(errors()) as watch:
            call = Call(session, None if no_spark else spark.session, watch)
            rows = procedure.rows(call, arguments)
    finally:
        spark.stop()
    names = [column.name for column in procedure.columns]
    if as_json:
        print_json([mapped(dict(zip(names, row, strict=True)), _json) for row in rows])
    else:
        _show(names, rows)
    if rows and procedure.finds_faults:
        raise typer.Exit(FAULTS_FOUND)


def _show(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    numbers = [name for i, name in enumerate(names) if rows and all(isinstance(r[i], int) for r in rows)]
    table = grid(None, *names, right=tuple(numbers))
    for row in rows:
        table.add_row(*("" if cell is None else plain(str(_json(cell))) for cell in row))
    screen().print(table if rows else "nothing")


def _json(value: Any) -> Any:
    return iso(int(value.timestamp() * 1_000)) if isinstance(value, datetime) else value


@contextmanager
def _bars(console: Console) -> Iterator[Watch]:
    """A bar for each step of a job, on a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:

        def watch(doing: str, done: int, total: int) -> None:
            if doing not in bars:
                bars[doing] = progress.add_task(doing)
            progress.update(bars[doing], completed=done, total=total or None)

        yield watch


class _Spark:
    """The Spark session of a command, started when a job first asks for it."""

    def __init__(self, master: str | None) -> None:
        self._master = master
        self._started: SparkSession | None = None

    def session(self) -> SparkSession:
        if self._started is None:
            from pyspark.sql import SparkSession

            builder = SparkSession.builder.appName("polaris-spark maintain")
            if self._master:
                builder = builder.master(self._master)
            use_this_python_in_local_workers(builder)
            if "PYSPARK_GATEWAY_PORT" not in os.environ:
                builder = builder.config("spark.ui.enabled", "false")
            self._started = builder.getOrCreate()
        return self._started

    def stop(self) -> None:
        if self._started is not None:
            self._started.stop()


for _procedure in procedures().values():
    if _procedure.maintenance:
        try:
            add(_procedure)
        except InputError as error:  # another package's: the commands work without it
            errors().print(f"polaris-spark: {error}", markup=False)
