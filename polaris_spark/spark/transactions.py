"""Transactions of a Spark session as a context manager."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

log = logging.getLogger("polaris_spark")


class SparkTransaction:
    """The transaction of a Spark session that `transaction` has begun."""

    def __init__(self, spark: Any, system: str) -> None:
        """
        Args:
            spark: the Spark session.
            system: name of the namespace of procedures, in SQL.
        """
        self._spark = spark
        self._system = system

    def savepoint(self, name: str) -> None:
        """Set a savepoint. It hides an earlier savepoint of the same name.

        Raises:
            pyspark.errors.PySparkException: the transaction has ended.
        """
        self._spark.sql(f"CALL {self._system}.savepoint({_literal(name)})")

    def rollback_to(self, name: str) -> None:
        """Undo all changes since a savepoint. The transaction stays open.

        Raises:
            pyspark.errors.PySparkException: the transaction has no such savepoint, or has ended.
        """
        self._spark.sql(f"CALL {self._system}.rollback(savepoint => {_literal(name)})")


@contextmanager
def transaction(
    spark: Any, catalog: str = "polaris", *, isolation: str = "serializable"
) -> Iterator[SparkTransaction]:
    """Carry out a transaction: all statements of the Spark session on this catalog, until the block ends, take effect
    in one commit. If the block raises an error, or the commit fails, nothing changes. Yield an object that sets
    savepoints and returns to them.

    Args:
        spark: the Spark session. Other sessions are not affected.
        catalog: name of the catalog in the session.
        isolation: `serializable` or `snapshot` (`catalog.merges.transactions`).
    Raises:
        pyspark.errors.PySparkException: other sessions have changed something that the transaction changed or read.
    """
    system = f"`{catalog.replace('`', '``')}`.system"
    spark.sql(f"CALL {system}.begin(isolation => {_literal(isolation)})")
    try:
        yield SparkTransaction(spark, system)
        spark.sql(f"CALL {system}.commit()")
    except BaseException:
        try:
            spark.sql(f"CALL {system}.rollback()")
        except Exception:  # the caller gets the first error; Spark reports this one in its own classes
            log.warning("the transaction could not be rolled back", exc_info=True)
        raise


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
