"""`export_metadata`: writes the metadata files of tables and views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import BadRequestError
from polaris_spark.jobs.engine import engine_of
from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.tables.metadata_export import Exported, ExportItem
    from polaris_spark.commits.state import CommitReader

_FAILURES_TOLD = 3


def select(
    reader: CommitReader, catalog: str, *, table: str | None, namespace: str | None
) -> list[ExportItem]:
    """Return the tables and views that the arguments `table` and `namespace` of a procedure select.

    If both are None, all tables and views of the catalog are selected.

    Args:
        catalog: name of the catalog; an identifier may begin with this name.
        table: SQL identifier of a table or view.
        namespace: SQL identifier of a namespace, whose nested namespaces are selected, too.
    Raises:
        InputError: an identifier is malformed, or both `table` and `namespace` are given.
        BadRequestError: the table, view or namespace does not exist.
    """
    from polaris_spark.catalog.tables.metadata_export import wanted

    return wanted(
        reader,
        table=None if table is None else levels_named(reader, catalog, "table", table),
        namespace=None if namespace is None else levels_named(reader, catalog, "namespace", namespace),
    )


def rows(done: Sequence[Exported]) -> list[tuple[str, str, str, str]]:
    """Return the result rows of an export: name, kind, location and outcome.

    Raises:
        BadRequestError: some files were not written. All other files were written.
    """
    from polaris_spark.catalog.rows import TABLE

    failed = [one for one in done if one.error]
    if failed:
        told = "; ".join(f"{_text(one)}: {one.error}" for one in failed[:_FAILURES_TOLD])
        raise BadRequestError(
            f"{len(failed)} of {len(done)} metadata files were not written, for example {told}"
        )
    return [(_text(one), "table" if one.kind == TABLE else "view", one.location, one.outcome) for one in done]


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.files.locations import folder
    from polaris_spark.catalog.tables.metadata_export import Export

    catalog = call.session.catalog
    table, namespace, directory = (arguments.get(name) for name in ("table", "namespace", "location"))
    items = select(catalog.head(), catalog.name, table=table, namespace=namespace)
    export = Export(
        directory=None if directory is None else folder(directory),
        overwrite=arguments.get("overwrite", False),
    )
    return rows(list(engine_of(call).map(export, items, "exporting tables and views")))


def _text(one: Exported) -> str:
    from polaris_spark.catalog.entities.identifiers import dotted

    return dotted((*one.name.namespace, one.name.name))


PROCEDURE = Procedure(
    name="export_metadata",
    needs=(Need("TABLE_READ_PROPERTIES", On.BRANCH), Need("CATALOG_MAINTAIN", On.CATALOG)),
    parameters=(
        Parameter("table", "STRING", "a table or view, such as db.t"),
        Parameter(
            "namespace", "STRING", "a namespace, with nested namespaces; by default, the whole catalog"
        ),
        Parameter(
            "location",
            "STRING",
            "directory for the files; by default, each file is written to its own metadata location",
            is_location=True,
        ),
        Parameter("overwrite", "BOOLEAN", "whether to replace existing files that have other content"),
    ),
    columns=columns("table STRING, kind STRING, metadata_location STRING, outcome STRING"),
    run=_run,
    over_http=True,
    comment="Write the metadata.json files of tables and views, as of the newest commit.",
    uses_spark=True,
)
