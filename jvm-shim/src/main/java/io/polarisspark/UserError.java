package io.polarisspark;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import org.apache.iceberg.PendingUpdate;
import org.apache.iceberg.exceptions.AlreadyExistsException;
import org.apache.iceberg.exceptions.BadRequestException;
import org.apache.iceberg.exceptions.ForbiddenException;
import org.apache.iceberg.exceptions.NoSuchNamespaceException;
import org.apache.iceberg.exceptions.UnprocessableEntityException;
import org.apache.iceberg.exceptions.ValidationException;
import org.apache.spark.QueryContext;
import org.apache.spark.SparkRuntimeException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;

/**
 * Errors that the user of a statement can correct. PySpark and the SQL shell show only Spark's own exceptions without a
 * stack trace. Therefore such an error is reported as one of them, with a registered condition that adds no text.
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

  /** Converts Iceberg's exceptions for statements that cannot be executed as written. Returns others unchanged. */
  static RuntimeException of(RuntimeException error) {
    boolean refused =
        error instanceof NoSuchNamespaceException
            || error instanceof BadRequestException
            || error instanceof ForbiddenException
            || error instanceof UnprocessableEntityException
            || error instanceof ValidationException
            || error instanceof AlreadyExistsException
            // Iceberg's procedures wrap Spark's exception for a missing table.
            || (error.getClass() == RuntimeException.class
                && error.getCause() instanceof NoSuchTableException);
    return refused ? of(error.getMessage(), error) : error;
  }

  /**
   * Returns an object that forwards each call and converts the errors. Pending updates and bound procedures that its
   * methods return convert errors, too.
   *
   * @param type the interface of the object
   */
  static <T> T converting(Class<T> type, T target) {
    Object proxy =
        Proxy.newProxyInstance(
            UserError.class.getClassLoader(),
            new Class<?>[] {type},
            (self, method, arguments) -> {
              Object result;
              try {
                result = method.invoke(target, arguments);
              } catch (InvocationTargetException thrown) {
                Throwable error = thrown.getCause();
                throw error instanceof RuntimeException refused ? of(refused) : error;
              }
              Class<?> returned = method.getReturnType();
              if (result == target && returned.isInstance(self)) {
                return self;
              }
              boolean convertible =
                  returned.isInterface()
                      && (PendingUpdate.class.isAssignableFrom(returned)
                          || returned == BoundProcedure.class);
              return convertible && result != null ? convertingAs(returned, result) : result;
            });
    return type.cast(proxy);
  }

  private static <T> T convertingAs(Class<T> type, Object target) {
    return converting(type, type.cast(target));
  }
}
