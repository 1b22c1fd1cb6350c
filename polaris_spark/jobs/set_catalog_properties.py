"""`set_catalog_properties`: sets and removes properties of the catalog, which apply to all sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.access.needs import Need, On, When
from polaris_spark.errors import InputError
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    updates, removals = arguments.get("properties", {}), arguments.get("unset", [])
    for name, text in updates.items():
        if text is None:
            raise InputError(f"the property {name!r} is NULL; name it in 'unset' to remove it")
    if None in removals:
        raise InputError("the argument 'unset' contains NULL; it must contain only names of properties")
    session = call.session
    before = session.catalog_properties()
    after = session.set_catalog_properties(updates, removals=removals)
    return [(name, after.get(name), before.get(name)) for name in sorted({**before, **after})]


_CHANGES = When("if it changes properties", lambda asked: bool(asked.body))

PROCEDURE = Procedure(
    name="set_catalog_properties",
    needs=(
        Need("CATALOG_READ_PROPERTIES", On.CATALOG),
        Need("CATALOG_WRITE_PROPERTIES", On.CATALOG, _CHANGES),
    ),
    comment="Set and remove properties of the catalog, which apply to all sessions; show all properties.",
    parameters=(
        Parameter(
            "properties",
            "MAP<STRING,STRING>",
            "values by name, such as map('gc.enabled', 'false')",
            takes_variables=False,
        ),
        Parameter("unset", "ARRAY<STRING>", "names of properties to remove"),
    ),
    columns=columns("property STRING, value STRING, before STRING"),
    run=_run,
    over_http=True,
)
