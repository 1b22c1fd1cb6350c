"""`adopt`: makes a table the owner of locations that its imported metadata references outside its own folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.jobs.identifiers import levels_named
from polaris_spark.jobs.maintenance import job
from polaris_spark.jobs.procedure import Call, Parameter, columns

ADOPTED, WOULD_ADOPT, REFUSED = "adopted", "would be adopted", "refused"


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.catalog.imports.adoption import Adopt, adoptable, refusals

    session, catalog = call.session, call.session.catalog
    *namespace, name = levels_named(catalog.head(), catalog.name, "table", arguments["table"])
    one = adoptable(catalog, TableName(tuple(namespace), name), session.principal)
    call.progress("looking for other tables in the locations")
    refused = refusals(catalog, one)
    chosen = [location for location in one.unconfirmed if location not in refused]
    outcome = WOULD_ADOPT
    if not arguments.get("dry_run", False):
        outcome = ADOPTED
        if chosen:
            operation = session.operation()
            adopted = catalog.commit(Adopt(catalog.context, operation, one, chosen))
            chosen = [location for location in chosen if location in adopted]
    rows = [(location, outcome, None) for location in chosen]
    return [*rows, *((location, REFUSED, why) for location, why in refused.items())]


PROCEDURE = job(
    name="adopt",
    comment="Make a table the owner of the locations outside its own folder that its imported metadata references.",
    parameters=(
        Parameter("table", "STRING", "the table or view, such as db.t", required=True),
        Parameter("dry_run", "BOOLEAN", "only report what would be adopted"),
    ),
    columns=columns("location STRING, outcome STRING, reason STRING"),
    run=_run,
    scope="catalog",
)
