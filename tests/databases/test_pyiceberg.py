"""pyiceberg's catalog interface on every database."""

from __future__ import annotations

import pickle
from pathlib import Path

from polaris_spark.pyiceberg import PolarisCatalog
from tests.pyiceberg_adapter.content import SCHEMA, content, rows


def test_data_is_written_found_by_another_catalog_and_read_by_a_pickled_table(
    store: str, tmp_path: Path
) -> None:
    warehouse = str(tmp_path / "warehouse")
    with (
        PolarisCatalog("lake", store=store, warehouse=warehouse) as one,
        PolarisCatalog("lake", store=store, warehouse=warehouse) as two,
    ):
        one.create_namespace("db")
        table = one.create_table("db.t", SCHEMA)
        table.append(rows((1, "a"), (2, "b")))
        two.load_table("db.t").append(rows((3, "c")))
        one.load_table("db.t").delete("id = 2")
        assert content(two.load_table("db.t")) == [(1, "a"), (3, "c")]
        assert two.list_tables("db") == [("db", "t")]
        assert content(pickle.loads(pickle.dumps(one.load_table("db.t")))) == [(1, "a"), (3, "c")]
