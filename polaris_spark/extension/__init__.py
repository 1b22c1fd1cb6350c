"""The routes that this product adds to the Iceberg REST protocol, below `polaris-spark/v1`.

The extension's routes call procedures, control their runs, read the system views, return the changes of a branch, and
say how to read materialized views and whether an engine may delete files of a table. The routes of the management API,
below `api/management/v1`, manage catalogs. `ROUTER` contains these
routes and the Iceberg routes. `connect` opens a catalog whose session answers all of them.
"""

from __future__ import annotations

from typing import Any

from polaris_spark.clock import Clock
from polaris_spark.extension import (
    changes,
    management,
    management_access,
    materialized_views,
    policies,
    procedures,
    tables,
    views,
)
from polaris_spark.rest import opening
from polaris_spark.rest.config import ROUTES
from polaris_spark.rest.router import Router
from polaris_spark.rest.session import Session

ROUTER = Router(
    [
        *ROUTES,
        *procedures.ROUTES,
        *views.ROUTES,
        *materialized_views.ROUTES,
        *tables.ROUTES,
        *changes.ROUTES,
        *management.ROUTES,
        *management_access.ROUTES,
        *policies.ROUTES,
    ]
)
"""All routes: the routes of the Iceberg protocol and the routes of the extension."""


def connect(
    *, store: str, warehouse: str | None = None, clock: Clock | None = None, **properties: Any
) -> Session:
    """Open a catalog and return its session. Create the store, the realm and the catalog if they are missing, unless
    `create=False`.

    Args:
        store: URI of the database, such as `sqlite:///path/catalog.db` or `memory:`.
        warehouse: location below which tables are created if their creator gives no location. It is stored in the
            catalog when the catalog is created. Without a warehouse, only an existing catalog can be opened.
        clock: clock to use; for tests.
        properties: catalog properties; names can have underscores instead of dashes (`metadata_files="never"`). A
            property whose value is None is ignored.
    Raises:
        InputError: a property cannot be used.
        NoStoreError: the store does not exist, and `create` is false.
        StateError: the realm or catalog cannot be used in its present state, or a newer release made the store.
    """
    return opening.connect(store=store, warehouse=warehouse, clock=clock, router=ROUTER, **properties)
