"""Reads of tables and views through views.

A client that loads a table or view because a view names it can say so by the parameter `referenced-by` of the Iceberg
REST protocol: the chain of views, the outermost first. In a realm with access control, the caller then needs a
privilege on the outermost view only. Everything that a view names is read with the rights of the view's definer, the
principal that made its current version. The chain is only a claim, so `definer_of` checks each of its links.
"""

from __future__ import annotations

from urllib.parse import unquote

from polaris_spark.catalog.entities.entities import SEPARATOR, TableName, find, table_key
from polaris_spark.catalog.materialized.query_pinning import names_in
from polaris_spark.catalog.materialized.view_sources import query_of
from polaris_spark.catalog.metadata.rows import View
from polaris_spark.catalog.rows import VIEW
from polaris_spark.commits.state import State
from polaris_spark.errors import BadRequestError, ForbiddenError

MAX_VIEWS = 16
"""Maximum number of views in a chain."""


def views_in(text: str) -> list[TableName]:
    """Return the views in a value of the parameter `referenced-by`, the outermost first. Some clients escape the names
    twice, so names without a separator are unescaped once more.

    Raises:
        BadRequestError: the text is not a list of names, each with a namespace, or is longer than `MAX_VIEWS`.
    """
    found = []
    for name in text.split(","):
        levels = (name if SEPARATOR in name else unquote(name)).split(SEPARATOR)
        if len(levels) < 2 or not all(levels):
            raise BadRequestError(
                f"referenced-by is {text[:200]!r}; it must be names of views with their namespaces, separated by "
                "commas, and the levels of a name separated by the character 0x1F"
            )
        found.append(TableName(tuple(levels[:-1]), levels[-1]))
    if len(found) > MAX_VIEWS:
        raise BadRequestError(f"referenced-by has {len(found)} views; at most {MAX_VIEWS} are supported")
    return found


def definer_of(state: State, catalog: str, view: TableName, following: TableName) -> str:
    """Return the definer of a view, after checking that the view's query names a table or view.

    Args:
        catalog: name of the catalog.
        following: the table or view that the query must name. It need not exist.
    Raises:
        ForbiddenError: the view does not exist, its query does not name `following` or cannot be checked, or the view
            has no definer.
    """
    entry = find(state, table_key(view, VIEW))
    if entry is None:
        raise refused(view, "it does not exist")
    row = state.get(entry.content, View)
    try:
        query = query_of(state, row)
        if query.catalog not in ("", catalog):
            raise refused(
                view,
                f"its query resolves names in the catalog {query.catalog!r}, but this catalog is {catalog!r}",
            )
        is_named = following in names_in(state, catalog, query)
    except BadRequestError as error:
        raise refused(view, f"its query cannot be checked: {error}") from None
    if not is_named:
        raise refused(view, f"its query does not name {following}")
    if not row.definer:
        raise refused(
            view, "it is not known who made its current version; replace the view to become its definer"
        )
    return row.definer


def refused(view: TableName, why: str) -> ForbiddenError:
    """Return the error for a chain of views through which the caller cannot read anything."""
    return ForbiddenError(f"nothing can be read through view {view}: {why}")
