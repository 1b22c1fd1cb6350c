#!/bin/sh
# Spark SQL with the catalog `polaris`, by configuration alone. Arguments go to spark-sql:
#
#     examples/spark_sql.sh -e 'CREATE NAMESPACE IF NOT EXISTS shop; SHOW NAMESPACES'
#
# PYTHON is an interpreter that has polaris-spark installed; DIRECTORY is where the catalog and its tables are.
set -eu
PYTHON=${PYTHON:-python3}
DIRECTORY=${DIRECTORY:-$PWD/polaris-example}
mkdir -p "$DIRECTORY"

PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)')
JAR=$("$PYTHON" -c 'from polaris_spark.spark.session import jar; print(jar())')
SPARK_SQL=$(dirname "$PYTHON")/spark-sql
[ -x "$SPARK_SQL" ] || SPARK_SQL=spark-sql

# Spark's workers, which read polaris.system.*, run on the same interpreter.
export PYSPARK_PYTHON="$PYTHON"
exec "$SPARK_SQL" \
  --jars "$JAR" \
  --packages org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 \
  --conf spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions,io.polarisspark.PolarisSparkSessionExtensions \
  --conf spark.sql.catalogImplementation=in-memory \
  --conf spark.sql.defaultCatalog=polaris \
  --conf spark.sql.catalog.polaris=io.polarisspark.PolarisCatalog \
  --conf spark.sql.catalog.polaris.type=rest \
  --conf spark.sql.catalog.polaris.uri="sqlite://$DIRECTORY/catalog.db" \
  --conf spark.sql.catalog.polaris.store="sqlite://$DIRECTORY/catalog.db" \
  --conf spark.sql.catalog.polaris.warehouse="$DIRECTORY/warehouse" \
  --conf spark.sql.catalog.polaris.python="$PYTHON" \
  "$@"
