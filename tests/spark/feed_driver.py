"""A streaming driver of its own, to be killed: ``feed_driver.py STORE SINK CHECKPOINT``. It follows until then."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(store: str, sink: str, checkpoint: str) -> None:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    options = {"store": store, "view": "changes", "catalog": "polaris", "max-changes-per-batch": "7"}
    changes = spark.readStream.format("polaris-objects").options(**options).load()
    writer = changes.writeStream.format("parquet").option("path", sink)
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
