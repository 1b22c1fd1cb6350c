"""Analysis of names and queries by a Spark session, for pinning queries of materialized views."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polaris_spark.catalog.materialized.view_sources import QueryEngine
    from polaris_spark.catalog.metadata.texts import Json

_SESSION_CATALOG = "spark.sql.catalog.spark_catalog"


def query_engine(spark: SparkSession) -> QueryEngine:
    """Return an object that analyzes names and queries in the session. It looks up each table outside of the catalog
    once."""
    import msgspec
    from py4j.protocol import Py4JJavaError

    from polaris_spark.catalog.materialized.outside_sources import OutsideSources
    from polaris_spark.catalog.materialized.view_sources import QueryEngine
    from polaris_spark.errors import BadRequestError

    session: Any = spark._jsparkSession
    jvm: Any = spark._jvm
    manager = session.sessionState().catalogManager()

    def describe(parts: tuple[str, ...]) -> Json:
        try:
            text = jvm.io.polarisspark.OutsideSources.describe(session, java_list(spark, parts))
        except Py4JJavaError as error:
            problem = error.java_exception.getMessage()
            raise BadRequestError(f"{'.'.join(filter(None, parts))} cannot be loaded: {problem}") from error
        found: Json = msgspec.json.decode(str(text))
        return found

    return QueryEngine(
        lambda name: bool(manager.isCatalogRegistered(name)),
        lambda sql: [type for _, type in spark.sql(sql).dtypes],
        OutsideSources(describe, reads_delta=True),
        str(spark.conf.get(_SESSION_CATALOG, "")).endswith(".DeltaCatalog"),
        case_sensitive=is_case_sensitive(spark),
    )


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether a session compares names with regard to case."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def session_settings(spark: SparkSession) -> Json:
    """Return the settings of a session on which results of queries depend."""
    import msgspec

    jvm: Any = spark._jvm
    found: Json = msgspec.json.decode(str(jvm.io.polarisspark.SessionSettings.of(spark._jsparkSession)))
    return found


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error's cause."""
    from py4j.protocol import Py4JJavaError

    if not isinstance(error, Py4JJavaError):
        return (str(error).strip() or type(error).__name__).partition("\n")[0]
    cause: Any = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getMessage() or cause.getClass().getSimpleName()).partition("\n")[0]


def message_of(error: BaseException) -> str:
    """Return the first line of the message of an error's cause, without the name and state of the error in Spark."""
    return re.sub(r"^\[[A-Z_.]+\] (.*?)\.? SQLSTATE: \w+.*$", r"\1", first_line(error))


def java_list(spark: SparkSession, texts: Sequence[str]) -> Any:
    """Return a list of texts in the JVM."""
    jvm: Any = spark._jvm
    found = jvm.java.util.ArrayList()
    for text in texts:
        found.add(text)
    return found
