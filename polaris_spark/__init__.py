"""An Iceberg catalog for Spark. It keeps all its state in rows of a database. Any database that can compare-and-swap
one row can hold them.

`connect(store=..., warehouse=...)` opens a catalog in this process; `configure(builder, store=..., warehouse=...)`
adds it to a PySpark session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from polaris_spark.extension import connect
    from polaris_spark.jobs.registry import call
    from polaris_spark.rest.session import Session
    from polaris_spark.spark.session import configure
    from polaris_spark.spark.transactions import transaction

_LAZY = {
    "Session": "polaris_spark.rest.session",
    "call": "polaris_spark.jobs.registry",
    "connect": "polaris_spark.extension",
    "configure": "polaris_spark.spark.session",
    "transaction": "polaris_spark.spark.transactions",
}


def __getattr__(name: str) -> Any:
    """Return the object that this package exports as `name`, and import its module at first use. The import is lazy
    because executors import this package only to read rows, and need neither the Spark session nor the REST
    protocol."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Session", "__version__", "call", "configure", "connect", "transaction"]
