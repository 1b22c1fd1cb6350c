"""`create_materialized_view`: creates a materialized view, or replaces its query."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.errors import AlreadyExistsError, InputError
from polaris_spark.jobs.materialized_views.plan import (
    VIEW_ARGUMENT,
    changing_functions,
    lineage_of,
    new_view_named,
    refuse_hidden_inputs,
    spark_catalog,
)
from polaris_spark.jobs.materialized_views.query_engine import first_line, is_case_sensitive, query_engine
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from polaris_spark.catalog.entities.entities import TableName
    from polaris_spark.catalog.materialized.view_sources import ViewQuery
    from polaris_spark.catalog.metadata.texts import Json


_TRANSFORM = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_COMMA = re.compile(r",(?=(?:[^`]*`[^`]*`)*[^`]*$)")
"""A comma that is not between backquotes."""
_TIMES = {"year": "year", "years": "year", "month": "month", "months": "month", "day": "day", "days": "day"} | {
    "date": "day", "hour": "hour", "hours": "hour", "date_hour": "hour"
}  # fmt: skip  # reads better as one table


def _run(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.entities.entities import find, table_key
    from polaris_spark.catalog.entities.materialized_views import is_materialized
    from polaris_spark.catalog.materialized.materialized_view_changes import CreateMaterializedView
    from polaris_spark.catalog.metadata.rows import View
    from polaris_spark.catalog.rows import VIEW

    name, catalog = new_view_named(call, arguments["view"]), call.session.catalog
    replace, tolerant = arguments.get("or_replace", False), arguments.get("if_not_exists", False)
    if replace and tolerant:
        raise InputError("or_replace and if_not_exists cannot both be true")

    def exists() -> bool:
        state = catalog.view()
        found = find(state, table_key(name, VIEW))
        return found is not None and is_materialized(state.get(found.content, View))

    if tolerant and exists():
        return [(str(name), False)]
    view, storage = _requests(call, name, arguments)
    operation = call.session.operation()
    try:
        catalog.commit(
            CreateMaterializedView(catalog.context, operation, name, view, storage, replace=replace)
        )
    except AlreadyExistsError:  # another table or view can have the name
        if not (tolerant and exists()):
            raise
        return [(str(name), False)]
    return [(str(name), True)]


def _requests(
    call: Call, name: TableName, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check the query, and return the requests that create the view and its storage table, as in the REST protocol.

    Args:
        arguments: the arguments of the procedure.
    Raises:
        InputError: a materialized view cannot have this query.
    """
    from polaris_spark.catalog.materialized.query_pinning import pin
    from polaris_spark.catalog.materialized.view_sources import ViewQuery

    catalog, spark, sql = call.session.catalog, call.spark(), arguments["query"]
    _refuse_temporary_views(spark, sql)
    query = ViewQuery(sql, spark.catalog.currentCatalog(), tuple(_levels(spark)))
    pinned = catalog.loading(
        lambda: pin(catalog.view(), spark_catalog(call), query, name, query_engine(spark)),
        call.session.principal,
    )
    rows = spark.sql(pinned.sql)  # the query of a refresh, so that its errors are reported now
    plan = rows._jdf.queryExecution().analyzed()
    refuse_hidden_inputs(spark, pinned.sql, plan)
    _refuse_functions(changing_functions(spark, pinned.sql, plan), arguments.get("properties", {}))
    schema = _schema(spark, rows, arguments.get("columns"), arguments.get("comments", {}))
    version = _version(call, query, lineage_of(call, plan, pinned, len(rows.columns)))
    of_view, of_storage = _properties(arguments, rows.columns)
    fields = _partition_fields(arguments.get("partitioned_by", []), schema)
    return (
        {"schema": schema, "view-version": version, "properties": of_view},
        {
            "schema": schema,
            "partition-spec": {"spec-id": 0, "fields": fields},
            "properties": of_storage,
        },
    )


def _version(call: Call, query: ViewQuery, lineage: Json) -> dict[str, Any]:
    """Return the view version with a query, as in the REST protocol."""
    from polaris_spark.catalog.materialized.lineage import VERSION_LINEAGE
    from polaris_spark.catalog.metadata.texts import encode

    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": call.session.connection.clock.now_ms(),
        "summary": {
            "engine-name": "spark",
            "engine-version": call.spark().version,
            VERSION_LINEAGE: encode(lineage).decode(),
        },
        "default-namespace": list(query.namespace),
        "representations": [{"type": "sql", "sql": query.sql, "dialect": "spark"}],
    }
    return version if query.catalog == spark_catalog(call) else version | {"default-catalog": query.catalog}


def _properties(
    arguments: Mapping[str, Any], query_columns: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the properties of the view, and those of its storage table.

    Args:
        arguments: the arguments of the procedure.
        query_columns: names of the columns of the query.
    """
    from polaris_spark.catalog.entities.materialized_views import STORAGE_PROPERTIES

    properties = {key: text or "" for key, text in arguments.get("properties", {}).items()}
    of_storage = {k: v for k, v in properties.items() if k.startswith(STORAGE_PROPERTIES)}
    of_view = {k: v for k, v in properties.items() if k not in of_storage}
    of_view["spark.query-column-names"] = ",".join(query_columns)
    if "comment" in arguments:
        of_view["comment"] = arguments["comment"]
    return of_view, of_storage


def _levels(spark: SparkSession) -> list[str]:
    """Return the levels of the session's current namespace."""
    session: Any = spark._jsparkSession
    return list(session.sessionState().catalogManager().currentNamespace())


def _refuse_temporary_views(spark: SparkSession, query: str) -> None:
    from polaris_spark.catalog.materialized.view_queries import references_of

    session: Any = spark._jsparkSession
    temporary = session.sessionState().catalog()
    for reference in references_of(query, case_sensitive=is_case_sensitive(spark)):
        if len(reference.parts) == 1 and temporary.getTempView(reference.parts[0]).isDefined():
            raise InputError(
                f"{reference.identifier} is a temporary view of this session; a materialized view cannot read it, "
                "because other sessions do not have it"
            )


def _refuse_functions(functions: Sequence[str], properties: Mapping[str, str | None]) -> None:
    """Refuse a query that calls functions with which the chosen refresh strategy is not possible.

    Args:
        functions: those functions in the query whose results can differ for the same rows.
        properties: the properties of the materialized view.
    """
    from polaris_spark.catalog.entities.materialized_views import STRATEGY

    if functions and (properties.get(STRATEGY) or "full").strip().lower() == "incremental":
        raise InputError(
            f"the query calls {', '.join(functions)}, so it cannot be refreshed incrementally; leave "
            f"{STRATEGY} out or set it to 'full'"
        )


def _schema(
    spark: SparkSession, rows: DataFrame, columns: list[str] | None, comments: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the Iceberg schema of a query's rows, in JSON. All fields are optional, because a later state of the
    sources may give null where none is possible now.

    Args:
        columns: names of the columns; None for the names of the query.
        comments: comments by column.
    Raises:
        InputError: the names do not fit the query, or a column has a type that Iceberg does not have.
    """
    import msgspec
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from polaris_spark.catalog.entities.materialized_views import HIDDEN

    jvm: Any = spark._jvm
    if columns is not None:
        if len(columns) != len(rows.columns):
            raise InputError(
                f"the view has {len(columns)} columns ({', '.join(columns)}), but its query returns "
                f"{len(rows.columns)} ({', '.join(rows.columns)})"
            )
        rows = rows.toDF(*columns)
    names = [one.lower() for one in rows.columns]
    hidden = next((one for one in names if one.startswith(HIDDEN)), None)
    if hidden is not None:
        raise InputError(f"the column {hidden!r} cannot have a name that begins with {HIDDEN}; rename it")
    reserved = jvm.org.apache.iceberg.MetadataColumns
    metadata = next((one for one in rows.columns if reserved.isMetadataColumn(one)), None)
    if metadata is not None:
        raise InputError(f"Iceberg reserves the name {metadata!r} for a metadata column; rename the column")
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise InputError(f"the query returns two columns named {twice!r}; give them different names")
    try:
        converted = jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(rows._jdf.schema())
        text = jvm.org.apache.iceberg.SchemaParser.toJson(converted)
    except (Py4JJavaError, PySparkException) as error:
        raise InputError(f"Iceberg cannot store a column of the query: {first_line(error)}") from error
    schema: dict[str, Any] = msgspec.json.decode(_optional(text))
    for field in schema["fields"]:
        field.pop("doc", None)
        if comments.get(field["name"]):
            field["doc"] = comments[field["name"]]
    return schema | {"schema-id": 0}


def _optional(text: str) -> str:
    """Return the JSON of a schema with all its fields, elements and values optional."""
    import msgspec

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            required = ("required", "element-required", "value-required")
            return {k: False if k in required else changed(v) for k, v in value.items()}
        return [changed(one) for one in value] if isinstance(value, list) else value

    return msgspec.json.encode(changed(msgspec.json.decode(text))).decode()


def _partition_fields(asked: list[str], schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a partition spec.

    Args:
        asked: columns and transforms as in SQL, such as `region` and `days(ts)`.
    Raises:
        InputError: a column does not exist, or a transform is unknown.
    """
    return [_partition_field(text.strip(), schema) for text in asked]


def _partition_field(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    ids = {field["name"].lower(): (field["name"], field["id"]) for field in schema["fields"]}

    def column(name: str) -> tuple[str, int]:
        plain = name.strip()
        if plain.startswith("`") and plain.endswith("`"):
            plain = plain[1:-1].replace("``", "`")
        if plain.lower() not in ids:
            raise InputError(f"PARTITIONED BY names {name.strip()!r}, which is not a column of the view")
        return ids[plain.lower()]

    match = _TRANSFORM.fullmatch(text)
    if match is None:
        name, id = column(text)
        return {"name": name, "transform": "identity", "source-id": id}
    transform, inside = match[1].lower(), [one.strip() for one in _COMMA.split(match[2])]
    if transform in _TIMES and len(inside) == 1:
        name, id = column(inside[0])
        return {"name": f"{name}_{_TIMES[transform]}", "transform": _TIMES[transform], "source-id": id}
    if transform in ("bucket", "truncate") and len(inside) == 2:
        number, of = (inside[0], inside[1]) if inside[0].isdigit() else (inside[1], inside[0])
        if number.isdigit() and int(number) > 0:
            name, id = column(of)
            short = "bucket" if transform == "bucket" else "trunc"
            return {"name": f"{name}_{short}", "transform": f"{transform}[{number}]", "source-id": id}
    raise InputError(
        f"PARTITIONED BY contains {text[:200]!r}; it must be a column, or one of years, months, days, hours, "
        "bucket and truncate of a column, such as days(ts) or bucket(16, id)"
    )


PROCEDURE = Procedure(
    name="create_materialized_view",
    needs=(Need("VIEW_CREATE", On.DESTINATION, parameter=VIEW_ARGUMENT.name),),
    comment="Create a materialized view, or replace its query. It has no rows before its first refresh.",
    parameters=(
        VIEW_ARGUMENT,
        Parameter("query", "STRING", "the query, in Spark's SQL", required=True),
        Parameter("or_replace", "BOOLEAN", "whether to replace a materialized view of this name"),
        Parameter("if_not_exists", "BOOLEAN", "whether to do nothing if the materialized view exists"),
        Parameter("columns", "ARRAY<STRING>", "names of the columns; by default, those of the query"),
        Parameter("comments", "MAP<STRING,STRING>", "comments by column", takes_variables=False),
        Parameter("partitioned_by", "ARRAY<STRING>", "columns and transforms, such as days(ts)"),
        Parameter("comment", "STRING", "description of the view"),
        Parameter(
            "properties",
            "MAP<STRING,STRING>",
            "properties of the view, such as refresh-strategy, allow-stale-data, max-staleness and time-travel, and "
            "of its storage table (names that begin with write., read., commit., history., gc. or polaris., and "
            "format-version)",
            takes_variables=False,
        ),
    ),
    columns=columns("view STRING, created BOOLEAN"),
    run=_run,
    uses_spark=True,
    needs_spark=True,
    queries=True,
)
