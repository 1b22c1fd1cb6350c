"""Transactions of a Spark session as a context manager."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def transaction(spark: Any, catalog: str = "polaris", *, isolation: str = "serializable") -> Iterator[None]:
    """Carry out a transaction: all statements of the Spark session on this catalog, until the block ends, take effect
    in one commit. If the block raises an error, or the commit fails, nothing changes.

    Args:
        spark: the Spark session. Other sessions are not affected.
        catalog: name of the catalog in the session.
        isolation: `serializable` or `snapshot` (`catalog.transactions`).
    Raises:
        pyspark.errors.PySparkException: others have changed what the transaction changed or read.
    """
    system = f"`{catalog.replace('`', '``')}`.system"
    level = isolation.replace("\\", "\\\\").replace("'", "\\'")
    spark.sql(f"CALL {system}.begin(isolation => '{level}')")
    try:
        yield
        spark.sql(f"CALL {system}.commit()")
    except BaseException:
        spark.sql(f"CALL {system}.rollback()")
        raise
