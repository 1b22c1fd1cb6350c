"""`drop_materialized_view`: drops a materialized view with its storage table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import NoSuchViewError
from polaris_spark.jobs.materialized_views.plan import VIEW_ARGUMENT, view_named
from polaris_spark.jobs.procedure import IF_EXISTS, Call, Parameter, Procedure, columns


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.metadata.rows import View
    from polaris_spark.catalog.tables.contents import DropContent
    from polaris_spark.rest.table_routes import drop

    name, catalog = view_named(call, arguments["view"]), call.session.catalog
    operation, purge = call.session.operation(), arguments.get("purge", False)
    try:
        drop(
            catalog,
            DropContent(catalog.context, operation, name, View, purge=purge, only_materialized=True),
        )
    except NoSuchViewError:
        if not arguments.get("if_exists", False):
            raise
        return [(str(name), False)]
    return [(str(name), True)]


PROCEDURE = Procedure(
    name="drop_materialized_view",
    needs=(Need("VIEW_DROP", On.VIEW, parameter=VIEW_ARGUMENT.name),),
    comment="Drop a materialized view and its storage table.",
    parameters=(
        VIEW_ARGUMENT,
        IF_EXISTS,
        Parameter("purge", "BOOLEAN", "whether to delete the files of the storage table, too"),
    ),
    columns=columns("view STRING, dropped BOOLEAN"),
    run=_run,
    over_http=True,
)
