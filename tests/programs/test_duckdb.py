"""DuckDB with its Iceberg extension, attached as the README says, on tables that a server has in a local warehouse."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.errors import StateError
from polaris_spark.testing.waiting import PATIENCE_S
from tests.server.servers import Server, client, token_file
from tests.servers.installing import python_packages
from tests.stores import unavailable

pytestmark = pytest.mark.programs

ROOT = Path(__file__).parents[2]
TOKEN = "a" * 16
VERSION = "1.5.5"
PACKAGES = (
    "duckdb",
    "duckdb-extensions",
    *(f"duckdb-extension-{name}" for name in ("avro", "httpfs", "iceberg")),
)

WORK: dict[str, list[list[Any]]] = {
    "CREATE SCHEMA shop.cafe": [],
    "CREATE TABLE shop.cafe.orders (id BIGINT, item VARCHAR)": [],
    "INSERT INTO shop.cafe.orders VALUES (1, 'tea'), (2, 'coffee'), (3, 'milk')": [[3]],
    "UPDATE shop.cafe.orders SET item = 'cocoa' WHERE id = 2": [[1]],
    "DELETE FROM shop.cafe.orders WHERE id = 1": [[1]],
    "SELECT * FROM shop.cafe.orders ORDER BY id": [[2, "cocoa"], [3, "milk"]],
    # These two stage a table, whose files are written before its creation is committed.
    "CREATE TABLE shop.cafe.copy AS SELECT * FROM shop.cafe.orders": [[2]],
    """BEGIN; CREATE TABLE shop.cafe.staged (i INTEGER); INSERT INTO shop.cafe.staged VALUES (7); COMMIT""": [],
    "ALTER TABLE shop.cafe.copy ADD COLUMN price INTEGER": [],
    """MERGE INTO shop.cafe.copy t USING (SELECT 2 AS id UNION ALL SELECT 4) s ON t.id = s.id
    WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, item, price) VALUES (s.id, 'water', 5)""": [[2]],
    "SELECT * FROM shop.cafe.copy ORDER BY id": [[3, "milk", None], [4, "water", 5]],
    "SELECT * FROM shop.cafe.staged": [[7]],
    'CREATE SCHEMA shop."north.east"': [],  # the server makes `north` as well
    'CREATE TABLE shop."north.east".t (i INTEGER)': [],
    "SELECT schema_name FROM information_schema.schemata WHERE catalog_name = 'shop' ORDER BY 1":
        [["cafe"], ["north"], ["north.east"]],
    "SELECT schema, name FROM (SHOW ALL TABLES) WHERE database = 'shop' ORDER BY ALL":
        [["cafe", "copy"], ["cafe", "orders"], ["cafe", "staged"], ["north.east", "t"]],
    "DROP TABLE shop.cafe.orders": [],
    'DROP TABLE shop."north.east".t': [],
    'DROP SCHEMA shop."north.east"': [],
}  # fmt: skip  # a statement and its rows


def duckdb(folder: Path, *statements: str) -> list[Any]:
    """The rows of each statement, which DuckDB runs in a process of its own."""
    try:
        packages = python_packages(f"duckdb-{VERSION}", [f"{package}=={VERSION}" for package in PACKAGES])
    except StateError as error:
        unavailable(f"DuckDB cannot be had: {error}")
        raise
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("duckdb_statements.py")), str(folder), *statements],
        env={**os.environ, "PYTHONPATH": str(packages)},
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("metadata_files", ["every-commit", "never"])
def test_duckdb_creates_writes_and_reads_tables(tmp_path: Path, metadata_files: str) -> None:
    given = ["--token-file", str(token_file(tmp_path, {"duck": TOKEN})), "--metadata-files", metadata_files]
    store, warehouse = f"sqlite://{tmp_path / 'store.db'}", str(tmp_path / "warehouse")
    with Server(store, "--warehouse", warehouse, *given) as server:
        [attach] = re.findall(r"`(ATTACH .*)`", (ROOT / "docs" / "guides" / "http.md").read_text())
        attach = attach.replace("http://127.0.0.1:8181", server.uri).replace("'...'", f"'{TOKEN}'")
        _, *found = duckdb(tmp_path / "extensions", attach, *WORK)
        assert dict(zip(WORK, found, strict=True)) == WORK
        assert client(server, TOKEN).names("cafe") == ["copy", "staged"]
