"""Identifiers of tables and namespaces that a caller passes to a procedure as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from polaris_spark.errors import InputError

if TYPE_CHECKING:
    from polaris_spark.commits.state import CommitReader


def levels_named(
    reader: CommitReader, catalog: str, argument: Literal["table", "namespace"], text: str
) -> tuple[str, ...]:
    """Return the levels of an SQL identifier of a table, view or namespace, without the name of the catalog.

    The first level is the name of the catalog only if no namespace has this name.

    Args:
        reader: the commit in which the namespace is looked up.
        catalog: name of the catalog; the identifier may begin with this name.
        argument: name of the procedure's argument, which says whether the identifier names a table or a namespace. Use
            "table" for a view, too.
        text: the identifier.
    Raises:
        InputError: the text is not an identifier of a table or namespace.
    """
    from polaris_spark.catalog.entities.entities import namespace_key
    from polaris_spark.catalog.entities.identifiers import levels_of
    from polaris_spark.catalog.rows import NAMES

    levels = levels_of(text)
    least = 2 if argument == "table" else 1
    if levels is None or len(levels) < least or not all(levels):
        example = "db.t" if argument == "table" else "db"
        raise InputError(
            f"the {argument} is {text!r}; write it like {example}, "
            "with backquotes around a level that contains dots"
        )
    if levels[0] == catalog and len(levels) > least:
        is_namespace = reader.index(NAMES).get(namespace_key(levels[:1])) is not None
        return levels if is_namespace else levels[1:]
    return levels
