"""Transactions of several tables through pyiceberg's interface."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from polaris_spark.errors import InputError, MergeConflictError
from polaris_spark.pyiceberg import PolarisCatalog

ROWS = pa.table({"a": pa.array([1, 2], pa.int64())})


def test_tables_change_together_or_not_at_all(tmp_path: Path) -> None:
    place = {"store": f"sqlite://{tmp_path / 'store.db'}", "warehouse": str(tmp_path / "warehouse")}
    with PolarisCatalog("lake", **place) as catalog:
        catalog.create_namespace("db")
        for name in ("t", "u"):
            catalog.create_table(f"db.{name}", ROWS.schema)
        with catalog.transaction() as tx:
            tx.load_table("db.t").append(ROWS)
            tx.load_table("db.t").append(ROWS)
            tx.create_table("db.made", ROWS.schema).append(ROWS)
            tx.drop_table("db.u")
            assert tx.load_table("db.t").scan().count() == 4
            assert catalog.load_table("db.t").scan().count() == 0
            assert catalog.table_exists("db.u")
        assert [name for _, name in catalog.list_tables("db")] == ["made", "t"]
        counts = [catalog.load_table(f"db.{name}").scan().count() for name in ("t", "made")]
        assert counts == [4, 2]
        with pytest.raises(ZeroDivisionError):
            _drop_and_fail(catalog)
        with pytest.raises(MergeConflictError, match=r"It read table db\.t, which has been changed"):
            _read_what_others_change(catalog)
        counts = [catalog.load_table(f"db.{name}").scan().count() for name in ("t", "made")]
        assert counts == [6, 2]


def _drop_and_fail(catalog: PolarisCatalog) -> None:
    with catalog.transaction() as tx:
        tx.drop_table("db.t")
        raise ZeroDivisionError


def _read_what_others_change(catalog: PolarisCatalog) -> None:
    with catalog.transaction() as tx:
        tx.load_table("db.made").append(tx.load_table("db.t").scan().to_arrow())
        catalog.load_table("db.t").append(ROWS)


def test_a_catalog_of_a_transaction_is_not_pickled(tmp_path: Path) -> None:
    properties = {"store": f"sqlite://{tmp_path / 'store.db'}", "warehouse": str(tmp_path / "lake")}
    with PolarisCatalog("lake", **properties) as lake:
        lake.create_namespace("db")
        lake.create_table("db.t", ROWS.schema)
        with lake.transaction() as tx:
            for one in (tx, tx.load_table("db.t")):
                with pytest.raises(InputError, match="the catalog of a transaction cannot be pickled"):
                    pickle.dumps(one)
        assert pickle.loads(pickle.dumps(lake.load_table("db.t"))).name() == ("db", "t")


def test_a_part_of_a_transaction_is_undone(tmp_path: Path) -> None:
    place = {"store": f"sqlite://{tmp_path / 'store.db'}", "warehouse": str(tmp_path / "warehouse")}
    with PolarisCatalog("lake", **place) as catalog:
        catalog.create_namespace("db")
        catalog.create_table("db.t", ROWS.schema)
        with catalog.transaction() as tx:
            tx.load_table("db.t").append(ROWS)
            tx.savepoint("one")
            tx.load_table("db.t").append(ROWS)
            tx.create_table("db.made", ROWS.schema)
            assert tx.load_table("db.t").scan().count() == 4
            tx.rollback_to("one")
            assert tx.load_table("db.t").scan().count() == 2
            tx.load_table("db.t").append(ROWS)
            assert not catalog.load_table("db.t").scan().count()
        assert catalog.load_table("db.t").scan().count() == 4
        assert catalog.list_tables("db") == [("db", "t")]
