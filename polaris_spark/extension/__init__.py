"""The routes that this product adds to the Iceberg REST protocol, below `polaris-spark/v1`.

Procedures, their runs and the system views are answered by the same handler as the Iceberg routes. This package
composes the routes of both (`ROUTER`) and opens catalogs that answer both (`connect`).
"""

from __future__ import annotations

from typing import Any

from polaris_spark.clock import Clock
from polaris_spark.extension import procedures, views
from polaris_spark.rest import session
from polaris_spark.rest.config import ROUTES
from polaris_spark.rest.router import Router

ROUTER = Router([*ROUTES, *procedures.ROUTES, *views.ROUTES])
"""Every route: those of the Iceberg protocol, and those of the extension."""


def connect(
    *, store: str, warehouse: str | None = None, clock: Clock | None = None, **properties: Any
) -> session.Session:
    """Open a catalog. Create the store, the realm and the catalog if they are missing, unless `create=False`.

    Args:
        store: URI of the database, such as `sqlite:///path/catalog.db` or `memory:`.
        warehouse: location for tables that are created without a location; stored in the catalog when it is created.
            Without a warehouse only an existing catalog can be opened.
        clock: clock to use; for tests.
        properties: catalog properties, with underscores or dashes (`metadata_files="never"`). A property whose value is
            None is ignored.
    Raises:
        InputError: a property cannot be used.
        NoStoreError: the store does not exist, and `create` is false.
        StateError: the realm or catalog cannot be used in its present state, or a newer release made the store.
    """
    return session.connect(store=store, warehouse=warehouse, clock=clock, router=ROUTER, **properties)
