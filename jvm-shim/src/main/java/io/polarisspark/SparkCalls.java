package io.polarisspark;

import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.apache.spark.SparkContext;
import org.apache.spark.api.python.Py4JServer;
import org.apache.spark.sql.SparkSession;
import scala.Option;

/**
 * The calls of procedures that may run Spark jobs, and the requests that such a procedure sends from Python. They use
 * a gateway of their own, because PySpark's gateway, if there is one, belongs to the driver program. The gateway
 * starts with the first such call. It listens on the loopback interface only, and requires a secret.
 */
public final class SparkCalls {
  private static final Map<String, Caller> CALLERS = new ConcurrentHashMap<>();
  private static Py4JServer gateway;

  /** The session of a call, and the local properties of its thread, such as job group and tags. */
  private record Caller(SparkSession session, Properties properties) {}

  private SparkCalls() {}

  /** Registers the calling thread's session for Python, and returns how to reach it. */
  static Map<String, Object> begin(String call) {
    SparkSession session = SparkSession.active();
    SparkContext context = session.sparkContext();
    Properties properties = (Properties) context.getLocalProperties().clone();
    CALLERS.put(call, new Caller(session, properties));
    Py4JServer server = gateway(context);
    return Map.of("call", call, "port", server.getListeningPort(), "secret", server.secret());
  }

  static void end(String call) {
    CALLERS.remove(call);
  }

  /** Cancels the Spark jobs of a call. */
  static void cancelJobs(String call) {
    Caller caller = CALLERS.get(call);
    if (caller != null) {
      caller.session.sparkContext().cancelJobsWithTag(call);
    }
  }

  /**
   * For Python: makes the call's session the active session of this thread, and gives the call's local properties to
   * this thread's jobs.
   */
  public static SparkSession enter(String call) {
    Caller caller = CALLERS.get(call);
    if (caller == null) {
      throw new IllegalStateException("the call was cancelled");
    }
    SparkSession.setActiveSession(caller.session);
    SparkContext context = caller.session.sparkContext();
    context.setLocalProperties((Properties) caller.properties.clone());
    context.addJobTag(call);
    return caller.session;
  }

  /** For Python: clears the session and the local properties that {@link #enter} set for this thread. */
  public static void leave() {
    Option<SparkSession> active = SparkSession.getActiveSession();
    if (active.isDefined()) {
      active.get().sparkContext().setLocalProperties(new Properties());
    }
    SparkSession.clearActiveSession();
  }

  /** For Python: returns this JVM's default session, or the session of a call if there is no default session. */
  public static SparkSession defaultSession(String call) {
    Option<SparkSession> found = SparkSession.getDefaultSession();
    return found.isDefined() ? found.get() : CALLERS.get(call).session;
  }

  private static synchronized Py4JServer gateway(SparkContext context) {
    if (gateway == null) {
      gateway = started(context);
    }
    return gateway;
  }

  /**
   * Starts a gateway on a daemon thread. The gateway's threads inherit two properties from it: they are daemons, so a
   * program can end when its main method returns; and their class loader finds this class.
   */
  private static Py4JServer started(SparkContext context) {
    FutureTask<Py4JServer> start =
        new FutureTask<>(
            () -> {
              Py4JServer server = new Py4JServer(context.conf());
              server.start();
              return server;
            });
    Thread thread = new Thread(start, "polaris-spark-gateway");
    thread.setDaemon(true);
    thread.setContextClassLoader(SparkCalls.class.getClassLoader());
    thread.start();
    boolean interrupted = false;
    try {
      while (true) {
        try {
          return start.get();
        } catch (InterruptedException e) {
          interrupted = true;
        } catch (ExecutionException e) {
          throw new IllegalStateException("the gateway for Python cannot be started", e.getCause());
        }
      }
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }
}
