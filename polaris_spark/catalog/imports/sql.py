"""Import from catalogs in SQL databases. Iceberg's `JdbcCatalog` and pyiceberg's `SqlCatalog` use the same tables:

| table | columns |
| --- | --- |
| `iceberg_tables` | catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location, and in the newer schema iceberg_type (`TABLE` or `VIEW`, or null) |
| `iceberg_namespace_properties` | catalog_name, namespace, property_key, property_value |
"""  # noqa: E501  (a table's row is one line)

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from polaris_spark.catalog.entities.entities import NamespaceName
from polaris_spark.catalog.imports.sources import ListedNamespace, SourceEntry
from polaris_spark.catalog.rows import TABLE, VIEW
from polaris_spark.errors import MissingLibraryError, SourceError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

PAGE = 5_000
"""Maximum number of rows that one query returns."""

_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
"""Maps a URI scheme without a driver to the scheme with the SQLAlchemy driver to use."""

_TABLES, _NAMESPACES = "iceberg_tables", "iceberg_namespace_properties"
_EXISTS = "exists"
"""Property key in `iceberg_namespace_properties` that only marks that the namespace exists. It is not a property."""


class SqlTables:
    """Source of an import: a catalog in a SQL database. The database is only read."""

    def __init__(self, uri: str, catalog: str, options: Mapping[str, str]) -> None:
        """
        Args:
            uri: URI for SQLAlchemy or JDBC (`jdbc:sqlite:/path`, `jdbc:postgresql://host/db`).
            catalog: name of the catalog in the database; empty if there is only one catalog.
            options: `user` and `password`.
        Raises:
            MissingLibraryError: SQLAlchemy or the database's driver is not installed.
            SourceError: the URI is malformed, or its kind of database is not supported.
        """
        self._engine = _engine(uri, options)
        self._catalog = catalog

    def entries(self) -> Iterator[SourceEntry | ListedNamespace]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with self._engine.connect() as connection:
                columns = _columns(connection)
                catalog = _chosen(connection, self._catalog)
                yield from _namespaces(connection, catalog)
                yield from _tables(connection, catalog, typed="iceberg_type" in columns)
        except SQLAlchemyError as error:
            raise SourceError(f"the database cannot be read: {error}") from error
        finally:
            self._engine.dispose()


def _columns(connection: Connection) -> set[str]:
    from sqlalchemy import inspect
    from sqlalchemy.exc import NoSuchTableError

    try:
        return {column["name"].lower() for column in inspect(connection).get_columns(_TABLES)}
    except NoSuchTableError as error:
        raise SourceError(f"the database contains no catalog: it has no table {_TABLES}") from error


def _chosen(connection: Connection, asked: str) -> str:
    """Return the name of the catalog to import: `asked`, or the only catalog in the database if `asked` is empty."""
    names = sorted(
        {row[0] for row in _select(connection, f"SELECT DISTINCT catalog_name FROM {_TABLES}")}
        | {row[0] for row in _select_if_there(connection, f"SELECT DISTINCT catalog_name FROM {_NAMESPACES}")}
    )
    if asked and names and asked not in names:
        raise SourceError(f"the database has no catalog {asked!r}; it has: {', '.join(names)}")
    if len(names) > 1 and not asked:
        raise SourceError(
            f"the database holds several catalogs: {', '.join(names)}; choose one with the option 'catalog'"
        )
    return asked or (names[0] if names else "")


def _namespaces(connection: Connection, catalog: str) -> Iterator[ListedNamespace]:
    query = (
        f"SELECT namespace, property_key, property_value FROM {_NAMESPACES} WHERE catalog_name = :catalog "
        "ORDER BY namespace"
    )
    found: dict[str, dict[str, str]] = {}
    for namespace, key, value in _select_if_there(connection, query, catalog=catalog):
        properties = found.setdefault(namespace, {})
        if key != _EXISTS:
            properties[key] = "" if value is None else value
    for namespace, properties in found.items():
        yield ListedNamespace(_levels(namespace), properties)


def _tables(connection: Connection, catalog: str, *, typed: bool) -> Iterator[SourceEntry]:
    """Yield the tables and views of a catalog, read in pages in the order of the primary key.

    Args:
        typed: whether the table has the column `iceberg_type`, which distinguishes views from tables.
    """
    kind = "iceberg_type" if typed else "NULL"
    query = (
        f"SELECT table_namespace, table_name, metadata_location, {kind} FROM {_TABLES} "
        "WHERE catalog_name = :catalog AND (table_namespace > :namespace OR "
        f"(table_namespace = :namespace AND table_name > :name)) ORDER BY table_namespace, table_name LIMIT {PAGE}"
    )
    namespace = name = ""
    while True:
        rows = _select(connection, query, catalog=catalog, namespace=namespace, name=name)
        for namespace, name, location, type in rows:
            missing = "" if location else "it has no metadata file"
            yield SourceEntry(
                _levels(namespace), name, VIEW if type == "VIEW" else TABLE, location or "", missing
            )
        if len(rows) < PAGE:
            return


def _levels(namespace: str) -> NamespaceName:
    """Split a namespace name, as stored in the imported database, into levels. The database joins levels by dots and
    does not escape dots in names, so a name with a dot is split too."""
    return tuple(namespace.split(".")) if namespace else ()


def _select(connection: Connection, query: str, **values: str) -> list[Any]:
    from sqlalchemy import text

    return list(connection.execute(text(query), values))


def _select_if_there(connection: Connection, query: str, **values: str) -> list[Any]:
    """Return the rows of a query of `iceberg_namespace_properties`; an empty list if the database lacks this table."""
    from sqlalchemy import inspect

    return _select(connection, query, **values) if inspect(connection).has_table(_NAMESPACES) else []


def _engine(uri: str, options: Mapping[str, str]) -> Engine:
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise MissingLibraryError(
            "importing from a SQL catalog needs SQLAlchemy: pip install 'polaris-spark[import]'"
        ) from error
    try:
        url = make_url(sqlalchemy_uri(uri))
        url = url.set(username=options.get("user"), password=options.get("password"))
        return create_engine(url.set(drivername=_DRIVERS.get(url.drivername, url.drivername)))
    except ImportError as error:
        raise MissingLibraryError(f"the database's driver is not installed: {error}") from error
    except (SQLAlchemyError, ValueError) as error:
        raise SourceError(
            "the URI of the database cannot be used: it is malformed, or this kind of database is not supported "
            f"({type(error).__name__})"
        ) from error


def sqlalchemy_uri(uri: str) -> str:
    """Return a URI in SQLAlchemy's form. JDBC URIs are converted, others are returned unchanged."""
    sqlite = re.fullmatch(r"jdbc:sqlite:(?:file:)?([^?]*)(\?.*)?", uri)
    if sqlite is not None:
        return f"sqlite:///{sqlite[1]}"
    return uri.removeprefix("jdbc:").replace("mariadb://", "mysql://", 1)
