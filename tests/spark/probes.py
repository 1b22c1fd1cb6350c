"""Procedures of another package, as entry points bring them in; `install` makes an interpreter that has them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from polaris_spark.errors import InputError
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure
from polaris_spark.jobs.types import TYPES

Rows = Iterable[tuple[Any, ...]]
Arguments = Mapping[str, Any]


def _name(type: str) -> str:
    return "a_" + type.partition("<")[0].lower()


def _echo(call: Call, given: Arguments) -> Rows:
    return [tuple(given.get(_name(type)) for type in TYPES)]


def _many(call: Call, given: Arguments) -> Iterator[tuple[Any, ...]]:
    return ((n, f"row {n}") for n in range(given["count"]))


def _fail(call: Call, given: Arguments) -> Rows:
    if given["how"] == "exit":
        raise SystemExit(given.get("text"))
    if given["how"] == "die":
        os._exit(3)
    if given["how"] == "unforeseen":
        raise KeyError(given.get("text"))
    if given["how"] == "worker":
        call.spark().range(1).mapInArrow(_broken, "id bigint").collect()
    raise InputError(given.get("text", ""))


def _broken(batches: Any) -> Iterator[Any]:
    raise InputError("a worker cannot go on")
    yield


def _session(call: Call, given: Arguments) -> Rows:
    spark = call.spark()
    jvm: Any = spark._jvm
    # All of it goes through the JVM's own idea of which session is the active one, too.
    current = jvm.org.apache.spark.sql.SparkSession.active().conf().get("probe.key", None)
    summed = spark.range(1000).mapInArrow(lambda batches: batches, "id bigint").groupBy().sum("id").collect()
    return [
        (
            spark.conf.get("probe.key", None),
            current,
            spark.catalog.currentCatalog(),
            spark.table("probe_view").count() if spark.catalog.tableExists("probe_view") else -1,
            summed[0][0],
            spark.sparkContext.getLocalProperty("probe.property"),
        )
    ]


def _wait(call: Call, given: Arguments) -> Rows:
    import time

    begun = Path(given["file"])
    begun.touch()
    try:
        if given.get("job"):
            call.spark().range(1).mapInArrow(_sleeping, "id bigint").collect()
        while True:
            call.check()
            time.sleep(0.01)
    except BaseException as error:
        begun.with_suffix(".stopped").write_text(type(error).__name__)
        raise


def _sleeping(batches: Any) -> Iterator[Any]:
    import time

    time.sleep(300)
    yield from batches


def _procedure(
    name: str, run: Callable[[Call, Arguments], Rows], *rest: Parameter, columns: str
) -> Procedure:
    return Procedure(
        name=name,
        parameters=rest,
        columns=tuple(Column(*column.split()) for column in columns.split("; ")),
        run=run,
        uses_spark=True,
    )


ECHO = _procedure(
    "probe_echo",
    _echo,
    *(Parameter(_name(type), type, f"a {type}") for type in TYPES),
    columns="; ".join(f"{_name(type)} {type}" for type in TYPES),
)
MANY = _procedure(
    "probe_many",
    _many,
    Parameter("count", "BIGINT", "how many", required=True),
    columns="n BIGINT; text STRING",
)
FAIL = _procedure(
    "probe_fail",
    _fail,
    Parameter("how", "STRING", "in which way", required=True),
    Parameter("text", "STRING", "what to say"),
    columns="nothing INT",
)
SESSION = _procedure(
    "probe_session",
    _session,
    columns="key STRING; active STRING; catalog STRING; rows BIGINT; total BIGINT; property STRING",
)
WAIT = _procedure(
    "probe_wait",
    _wait,
    Parameter("file", "STRING", "is made when it begins", required=True),
    Parameter("job", "BOOLEAN", "whether a Spark job waits"),
    columns="nothing INT",
)


def install(directory: Path) -> Path:
    """Make a program in `directory` that is this interpreter with the procedures of this module installed."""
    metadata = directory / "probes-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: probes\nVersion: 1.0\n")
    names = [name for name, value in globals().items() if isinstance(value, Procedure)]
    entries = "\n".join(f"{name} = {__name__}:{name}" for name in names)
    (metadata / "entry_points.txt").write_text(f"[polaris_spark.procedures]\n{entries}\n")
    program = directory / "python"
    root = Path(__file__).parents[2]
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="{directory}:{root}:$PYTHONPATH" exec "{sys.executable}" "$@"\n'
    )
    program.chmod(0o755)
    return program
