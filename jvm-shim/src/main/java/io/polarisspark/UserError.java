package io.polarisspark;

import org.apache.iceberg.exceptions.BadRequestException;
import org.apache.iceberg.exceptions.ForbiddenException;
import org.apache.iceberg.exceptions.NoSuchNamespaceException;
import org.apache.iceberg.exceptions.UnprocessableEntityException;
import org.apache.spark.QueryContext;
import org.apache.spark.SparkRuntimeException;

/**
 * Errors that the user of a statement can mend. PySpark and the SQL shell show only Spark's own exceptions without a
 * stack trace, so this is one of them, with a registered condition whose message is ours alone.
 */
final class UserError {
  private UserError() {}

  static SparkRuntimeException of(String message, Throwable cause) {
    return new SparkRuntimeException(
        "USER_RAISED_EXCEPTION",
        scala.collection.immutable.Map$.MODULE$
            .<String, String>empty()
            .updated("errorMessage", message),
        cause,
        new QueryContext[0],
        "");
  }

  /** Iceberg's exceptions that say that a statement cannot be carried out as written; every other one is kept. */
  static RuntimeException of(RuntimeException error) {
    boolean refused =
        error instanceof NoSuchNamespaceException
            || error instanceof BadRequestException
            || error instanceof ForbiddenException
            || error instanceof UnprocessableEntityException;
    return refused ? of(error.getMessage(), error) : error;
  }
}
