"""Spark with Iceberg's S3FileIO and without keys of S3: the server of the catalog signs its requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polaris_spark.testing.waiting import PATIENCE_S
from tests.programs.starting import SPARK_HOME, Place, started
from tests.server.lakes import Lake

pytestmark = pytest.mark.programs

AWS = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
STATEMENTS = [
    "CREATE TABLE writer.db.orders (id BIGINT, item STRING) PARTITIONED BY (item)",
    "INSERT INTO writer.db.orders VALUES (1, 'tea'), (2, 'coffee/half %2F'), (3, 'a b+c')",
    "DELETE FROM writer.db.orders WHERE id = 1",
    # The creation of this table is staged: its files are written before the table exists.
    "CREATE TABLE writer.db.copied AS SELECT * FROM writer.db.orders",
    "CALL writer.system.expire_snapshots(table => 'db.orders', older_than => TIMESTAMP '2100-01-01', retain_last => 1)",
    "SELECT concat('rows: ', count(*)) FROM reader.db.copied",
    "SELECT concat('items: ', array_join(sort_array(collect_list(item)), ';')) FROM reader.db.orders",
    "SELECT concat('snapshots: ', count(*)) FROM reader.db.orders.snapshots",
    "INSERT INTO reader.db.orders VALUES (4, 'refused')",
    "SELECT 'this is not printed'",
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    made = Lake(tmp_path_factory.mktemp("lake"))
    yield made
    made.close()


def settings(lake: Lake, who: str) -> dict[str, str]:
    """Settings of a catalog whose name is that of a principal."""
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": lake.server.uri,
        ".token": lake.token(who),
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".header.X-Iceberg-Access-Delegation": "remote-signing",
    }
    return {f"spark.sql.catalog.{who}{name}": text for name, text in catalog.items()}


def test_spark_without_keys_writes_and_reads_tables_as_far_as_its_principal_may(
    lake: Lake, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    arguments = place.arguments
    packages = arguments[arguments.index("--packages") + 1]
    extensions = {"spark.sql.extensions": place.settings["spark.sql.extensions"].split(",")[0]}
    given = {**extensions, **settings(lake, "writer"), **settings(lake, "reader")}
    options = [word for key, value in given.items() for word in ("--conf", f"{key}={value}")]
    command = [str(SPARK_HOME / "bin" / "spark-sql"), "--packages", f"{packages},{AWS}", *options]
    with started(place, *command, "-e", ";".join(STATEMENTS)) as program:
        code = program.process.wait(3 * PATIENCE_S)
        printed = program.text()
    found = [line for line in printed.splitlines() if line.startswith(("rows: ", "items: ", "snapshots: "))]
    assert found == ["rows: 2", "items: a b+c;coffee/half %2F", "snapshots: 1"], printed[-6_000:]
    left = [one for one in lake.s3.keys("lake") if one.startswith("wh/db/orders-") and "/snap-" in one]
    assert len(left) == 1, "expire_snapshots has not deleted the files of the others"
    assert code != 0
    assert "needs the privilege TABLE_WRITE_DATA on table db.orders" in printed
    assert "this is not printed" not in printed
