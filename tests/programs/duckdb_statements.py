"""A program: run SQL statements in DuckDB, with its Iceberg extension, in one connection.

The first argument is a folder for DuckDB's extensions, the others are the statements. The rows of each are printed as a
line of JSON.
"""

from __future__ import annotations

import json
import sys

import duckdb
from duckdb_extensions import import_extension

folder, *statements = sys.argv[1:]
connection = duckdb.connect(config={"extension_directory": folder})
for extension in ("avro", "httpfs", "iceberg"):
    import_extension(extension, con=connection)
    connection.execute(f"LOAD {extension}")
for statement in statements:
    try:
        print(json.dumps(connection.execute(statement).fetchall()))
    except duckdb.Error as error:
        sys.exit(f"{statement}: {error}")
