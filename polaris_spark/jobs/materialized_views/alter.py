"""`alter_materialized_view`: renames a materialized view with its storage table, or changes its properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polaris_spark.access.needs import Need, On, When
from polaris_spark.errors import InputError
from polaris_spark.jobs.materialized_views.plan import VIEW_ARGUMENT, new_view_named, view_named
from polaris_spark.jobs.procedure import Call, Column, Parameter, Procedure


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.materialized.stored_views import materialized
    from polaris_spark.catalog.rows import VIEW
    from polaris_spark.catalog.tables.contents import Rename
    from polaris_spark.catalog.tables.view_changes import CommitView

    name, catalog = view_named(call, arguments["view"]), call.session.catalog
    properties, removals = arguments.get("set_properties", {}), arguments.get("unset_properties", [])
    if ("rename_to" in arguments) == bool(properties or removals):
        raise InputError("give either rename_to, or one or both of set_properties and unset_properties")
    materialized(catalog.view(), name)
    operation = call.session.operation()
    if "rename_to" in arguments:
        target = new_view_named(call, arguments["rename_to"])
        catalog.commit(Rename(catalog.context, operation, name, target, VIEW))
        return [(str(target),)]
    null = next((one for one, text in properties.items() if text is None), None)
    if null is not None:
        raise InputError(f"set_properties has a null value for {null!r}; use unset_properties to remove it")
    updates: list[dict[str, Any]] = []
    if removals:
        updates.append({"action": "remove-properties", "removals": list(removals)})
    if properties:
        updates.append({"action": "set-properties", "updates": dict(properties)})
    catalog.commit(CommitView(catalog.context, operation, name, [], updates))
    return [(str(name),)]


_RENAMES = When("if it renames the view", lambda asked: "rename_to" in asked.body)

PROCEDURE = Procedure(
    name="alter_materialized_view",
    needs=(
        Need("VIEW_WRITE_PROPERTIES", On.VIEW, parameter=VIEW_ARGUMENT.name),
        Need("VIEW_DROP", On.VIEW, _RENAMES, VIEW_ARGUMENT.name),
        Need("VIEW_CREATE", On.DESTINATION, _RENAMES, "rename_to"),
    ),
    comment="Rename a materialized view with its storage table, or change its properties.",
    parameters=(
        VIEW_ARGUMENT,
        Parameter("rename_to", "STRING", "the new name, such as db.v"),
        Parameter(
            "set_properties",
            "MAP<STRING,STRING>",
            "properties to set, as for create_materialized_view",
            takes_variables=False,
        ),
        Parameter("unset_properties", "ARRAY<STRING>", "names of properties to remove"),
    ),
    columns=(Column("view", "STRING"),),
    run=_run,
    over_http=True,
)
