"""`python -m tests.class_archive FILE`: an archive of Spark's classes, as a JVM has them after loading and checking.

A JVM that gets FILE in `-XX:SharedArchiveFile` starts with a third less processor time. Tests do this for all JVMs if
`POLARIS_SPARK_CLASS_ARCHIVE` names an existing file. A JVM with another class path or of another version ignores it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from conftest import QUICK_JAVA, resolving
from polaris_spark.spark.session import configure
from tests.spark.sql import run

STATEMENTS = (
    "CREATE NAMESPACE polaris.db",
    "USE polaris.db",
    "CREATE TABLE t (id INT, s STRING) TBLPROPERTIES ('format-version' = '2', 'write.merge.mode' = 'merge-on-read')",
    "INSERT INTO t VALUES (1, 'tea'), (2, 'coffee')",
    "CREATE MATERIALIZED VIEW v AS SELECT s, count(*) AS c FROM t GROUP BY s",
    "MERGE INTO t USING (SELECT 2 AS id) q ON t.id = q.id WHEN MATCHED THEN UPDATE SET s = 'milk'",
)


def main(archive: Path) -> None:
    """Write the archive when the JVM of a short session ends; the file has its name when it is complete."""
    part = archive.with_name(f"{archive.name}.part")
    with tempfile.TemporaryDirectory() as folder:
        builder = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.driver.extraJavaOptions", f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={part}")
        )
        builder = configure(builder, store=f"sqlite://{folder}/catalog.db", warehouse=f"{folder}/warehouse")
        with resolving():
            spark = builder.getOrCreate()
        run(spark, *STATEMENTS)
        for query in ("SELECT * FROM v", "SELECT * FROM polaris.system.tables", "CALL polaris.system.fsck()"):
            spark.sql(query).collect()
        jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        jvm.stdin.close()  # which ends the JVM
        jvm.wait(120)
    part.rename(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
