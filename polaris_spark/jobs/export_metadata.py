"""`export_metadata`: writes the metadata files of tables and views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polaris_spark.errors import BadRequestError, InputError
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure

if TYPE_CHECKING:
    from polaris_spark.catalog.exporting import Exported, Wanted
    from polaris_spark.commits.state import Snapshot

FEW = 48
"""Maximum number of tables and views to export in this process, which is faster than starting a Spark job."""

_FAILURES_TOLD = 3


def select(snapshot: Snapshot, catalog: str, *, table: str | None, namespace: str | None) -> list[Wanted]:
    """Return the tables and views that SQL identifiers select. An identifier may begin with the catalog's own name.

    Raises:
        InputError: an identifier is malformed, or both identifiers are given.
        BadRequestError: the table, view or namespace does not exist.
    """
    from polaris_spark.catalog.exporting import wanted

    return wanted(
        snapshot,
        table=None if table is None else _levels(snapshot, catalog, "table", table),
        namespace=None if namespace is None else _levels(snapshot, catalog, "namespace", namespace),
    )


def rows(done: Sequence[Exported]) -> list[tuple[str, str, str, str]]:
    """Return the result rows of an export: name, kind, location and outcome.

    Raises:
        BadRequestError: some files were not written. All other files were written, and a repeated export keeps them.
    """
    from polaris_spark.catalog.rows import TABLE

    failed = [one for one in done if one.error]
    if failed:
        told = "; ".join(f"{_text(one)}: {one.error}" for one in failed[:_FAILURES_TOLD])
        raise BadRequestError(f"{len(failed)} of {len(done)} metadata files were not written, such as {told}")
    return [(_text(one), "table" if one.kind == TABLE else "view", one.location, one.outcome) for one in done]


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    catalog = call.session.catalog
    table, namespace = arguments.get("table"), arguments.get("namespace")
    items = select(catalog.head(), catalog.name, table=table, namespace=namespace)
    overwrite = arguments.get("overwrite", False)
    return rows(list(_export(call, items, arguments.get("location"), overwrite=overwrite)))


def _export(
    call: Call, items: Sequence[Wanted], directory: str | None, *, overwrite: bool
) -> Iterator[Exported]:
    from polaris_spark.catalog.exporting import Exporter
    from polaris_spark.catalog.locations import folder
    from polaris_spark.spark.jobs.export import export
    from polaris_spark.spark.options import location_of

    session = call.session
    directory = None if directory is None else folder(directory)
    if len(items) > FEW and call.has_executors:
        yield from export(
            call.spark(),
            items,
            store=location_of(session.properties).resolved(),
            realm=session.catalog.references.store.realm,
            files=session.properties.other,
            directory=directory,
            overwrite=overwrite,
        )
        return
    exporter = Exporter(
        session.catalog.reader, session.catalog.files, directory=directory, overwrite=overwrite
    )
    for one in exporter.all(items):
        call.check()
        yield one


def _levels(snapshot: Snapshot, catalog: str, argument: str, text: str) -> tuple[str, ...]:
    from polaris_spark.catalog.entities import namespace_key
    from polaris_spark.catalog.identifiers import levels_of
    from polaris_spark.catalog.rows import NAMES

    levels = levels_of(text)
    least = 2 if argument == "table" else 1
    if levels is None or len(levels) < least or not all(levels):
        example = "db.t" if argument == "table" else "db"
        raise InputError(
            f"the {argument} is {text!r}; write it like {example}, "
            "with backquotes around a level that has dots in it"
        )
    if levels[0] == catalog and len(levels) > least:
        is_namespace = snapshot.index(NAMES).get(namespace_key(levels[:1])) is not None
        return levels if is_namespace else levels[1:]
    return levels


def _text(one: Exported) -> str:
    from polaris_spark.catalog.identifiers import dotted

    return dotted((*one.name.namespace, one.name.name))


PROCEDURE = Procedure(
    name="export_metadata",
    parameters=(
        Parameter("table", "STRING", "a table or view, such as db.t"),
        Parameter("namespace", "STRING", "a namespace, with all below it; without both, the whole catalog"),
        Parameter(
            "location",
            "STRING",
            "directory for the files, instead of their own metadata locations",
            is_location=True,
        ),
        Parameter("overwrite", "BOOLEAN", "whether a file of other content is replaced, rather than refused"),
    ),
    columns=(
        Column("table", "STRING"),
        Column("kind", "STRING"),
        Column("metadata_location", "STRING"),
        Column("outcome", "STRING"),
    ),
    run=_run,
    over_http=True,
    comment="Write the metadata.json of tables and views, as it is in the newest commit.",
    uses_spark=True,
)
