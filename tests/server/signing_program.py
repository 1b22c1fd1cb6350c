"""A program with pyiceberg and s3fs, without keys of S3, that writes and reads a table by requests that the catalog's
server signs. It prints what it has found, as JSON.

Its arguments are the server's URI, a token, the table, and `write` or `read`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog


def main(uri: str, token: str, name: str, action: str) -> dict[str, Any]:
    catalog = load_catalog(
        "lake",
        type="rest",
        uri=uri,
        token=token,
        **{
            "header.X-Iceberg-Access-Delegation": "remote-signing",
            "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
        },
    )
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "item": ["tea", "coffee", "cocoa"]})
    if action == "write":
        table = catalog.create_table(name, rows.schema)
        table.append(rows)
        table.append(rows)
    table = catalog.load_table(name)
    found: dict[str, Any] = {"rows": table.scan().to_arrow().num_rows, "location": table.location()}
    neighbor = table.location().rsplit("/", 1)[0] + "/another"
    attempts: dict[str, Callable[[], Any]] = {
        "write": lambda: table.append(rows),
        "read elsewhere": lambda: table.io.new_input(f"{neighbor}/f").open().read(),
        "write elsewhere": lambda: write(table, f"{neighbor}/f"),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
            found[what] = "done"
        except Exception as error:  # whatever pyiceberg and s3fs make of a refusal
            found[what] = type(error).__name__
    return found


def write(table: Any, location: str) -> None:
    with table.io.new_output(location).create(overwrite=True) as stream:
        stream.write(b"x")


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
