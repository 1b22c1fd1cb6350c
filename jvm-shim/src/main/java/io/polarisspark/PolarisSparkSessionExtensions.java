package io.polarisspark;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.classic.SparkSession;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * The session extension: the SQL statements of materialized views, see {@link MaterializedViewParser}. It is configured
 * in {@code spark.sql.extensions}, before or after Iceberg's extension.
 */
public final class PolarisSparkSessionExtensions
    extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectParser(
        (session, parser) -> new MaterializedViewParser((SparkSession) session, parser));
    return BoxedUnit.UNIT;
  }
}
