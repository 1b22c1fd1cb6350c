"""`import_catalog`: imports tables and views from another catalog. `load_imported`: loads lazily imported metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import InputError, PolarisError
from polaris_spark.jobs.engine import engine_of
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure

if TYPE_CHECKING:
    from polaris_spark.catalog.engine import Engine
    from polaris_spark.catalog.imports.importer import ImportOptions

_COLUMNS = tuple(
    Column(name, "STRING") for name in ("table", "kind", "metadata_location", "status", "message")
)
_CHOICE = (
    Parameter(
        "namespaces",
        "ARRAY<STRING>",
        "import only these namespaces of the source, with all nested namespaces",
    ),
    Parameter(
        "include",
        "ARRAY<STRING>",
        "import only tables and views whose names match a pattern, such as sales.*",
    ),
)
_HOW = (
    Parameter("dry_run", "BOOLEAN", "only report what would be done"),
    Parameter("parallelism", "INT", "number of parts into which the work is divided"),
)


def _import(call: Call, given: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.imports.jobs import import_source
    from polaris_spark.catalog.imports.open_source import Scrubber, open_source

    options = {k: v for k, v in given.get("options", {}).items() if v is not None}
    session = call.session
    files = dict(session.properties.other)
    scrub = Scrubber(options)
    try:
        source = open_source(given["source"].lower(), given.get("location", ""), options, files)
        lazy = given.get("lazy", False)
        engine = engine_of(call, writes_to=call.session.connection.backend)
        wanted = _options(given, engine)._replace(
            into=_namespace(given.get("into", "")), lazy=lazy, overwrite=given.get("overwrite", False)
        )
        rows = import_source(
            session.catalog, source, principal=session.principal, options=wanted, engine=engine
        )
    except PolarisError as error:
        if scrub(str(error)) == str(error):
            raise
        raise InputError(scrub(str(error))) from None
    return [row if row.message is None else row._replace(message=scrub(row.message)) for row in rows]


def _load(call: Call, given: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.imports.jobs import load_imported

    session, engine = call.session, engine_of(call, writes_to=call.session.connection.backend)
    options = _options(given, engine)
    return load_imported(session.catalog, principal=session.principal, options=options, engine=engine)


def _options(given: Mapping[str, Any], engine: Engine) -> ImportOptions:
    from polaris_spark.catalog.imports.importer import ImportOptions

    parallelism = given.get("parallelism")
    if parallelism is None:
        # One part per core. Tables are assigned to parts in turn, so more parts would hardly balance the load better.
        here = given.get("lazy", False) or engine.parts == 1
        parallelism = ImportOptions().parallelism if here else engine.parts
    return ImportOptions(
        namespaces=[one for one in given.get("namespaces", ()) if one],
        include=[one for one in given.get("include", ()) if one],
        dry_run=given.get("dry_run", False),
        parallelism=parallelism,
    )


def _namespace(text: str) -> tuple[str, ...]:
    from polaris_spark.catalog.entities.identifiers import parse_dotted

    path = parse_dotted(text) if text else ()
    if path is None:
        raise InputError(
            f"{text!r} is not a valid namespace name; separate its levels with dots, and put a level in backquotes "
            "only if it is empty or contains a dot or a backquote, as in sales.`north.east`"
        )
    return path


def _failure(rows: list[tuple[Any, ...]]) -> str | None:
    from polaris_spark.catalog.imports.importer import Row, summary
    from polaris_spark.catalog.imports.placement import CONFLICT, FAILED

    done = [Row(*row) for row in rows]
    if not done or any(row.status not in (CONFLICT, FAILED) for row in done):
        return None
    return f"nothing was imported ({summary(done)}); the messages above say why"


IMPORT = Procedure(
    name="import_catalog",
    needs=(Need("CATALOG_MANAGE_METADATA", On.BRANCH),),
    parameters=(
        Parameter("source", "STRING", "directory, hadoop, sql (or jdbc), rest, or pyiceberg", required=True),
        Parameter("location", "STRING", "root of the directory tree, or URI of the catalog"),
        Parameter(
            "options",
            "MAP<STRING,STRING>",
            "options of the source; a value may be env:NAME, for a variable listed in procedure-variables",
        ),
        Parameter("into", "STRING", "namespace below which everything is imported"),
        *_CHOICE,
        Parameter(
            "lazy", "BOOLEAN", "register only the metadata locations; the metadata is loaded on first use"
        ),
        Parameter(
            "overwrite",
            "BOOLEAN",
            "replace existing tables and views of the same name that have another metadata file",
        ),
        *_HOW,
    ),
    columns=_COLUMNS,
    run=_import,
    comment="Import tables and views by their metadata files from another catalog or a directory tree.",
    uses_spark=True,
    failure=_failure,
)

LOAD = Procedure(
    name="load_imported",
    needs=(Need("CATALOG_MAINTAIN", On.CATALOG),),
    parameters=(*_CHOICE, *_HOW),
    columns=_COLUMNS,
    run=_load,
    comment="Load the metadata of tables and views that a lazy import registered.",
    uses_spark=True,
)
