"""`undrop`: restores a dropped table, view or materialized view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.merges import reads
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.entities.entities import TableName


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.drops.undrop import undrop

    to = arguments.get("to")
    restored = undrop(
        call.session.catalog,
        _name(call, arguments["table"]),
        call.session.operation(),
        to=None if to is None else _name(call, to),
        commit=arguments.get("commit", 0),
    )
    return [(restored.kind, restored.name)]


def _name(call: Call, text: str) -> TableName:
    from polaris_spark.catalog.entities.entities import TableName

    catalog = call.session.catalog
    *namespace, name = levels_named(catalog.head(), catalog.name, "table", text)
    return TableName(tuple(namespace), name)


PROCEDURE = Procedure(
    name="undrop",
    needs=(Need("TABLE_CREATE", On.BRANCH), Need("VIEW_CREATE", On.BRANCH), *reads()),
    comment="Restore a dropped table, view or materialized view with its last content.",
    parameters=(
        Parameter("table", "STRING", "the table or view, such as db.t", required=True),
        Parameter("to", "STRING", "a new name; by default, the old one"),
        Parameter("commit", "BIGINT", "number of the commit that dropped it; by default, the newest one"),
    ),
    columns=columns("kind STRING, name STRING"),
    run=_run,
    over_http=True,
)
