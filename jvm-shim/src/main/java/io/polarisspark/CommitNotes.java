package io.polarisspark;

import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.internal.SQLConf;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The notes of a Spark session on its changes, such as a message: the session's settings {@code polaris.commit.<key>}.
 * They are sent with each change as headers.
 */
final class CommitNotes {
  private static final String SETTING = "polaris.commit.";
  private static final String HEADER = "X-Polaris-Commit-";
  private static final boolean IN_SPARK = isInSpark();

  private CommitNotes() {}

  /** The headers with the notes of the calling thread's session. None if the engine is not Spark. */
  static Map<String, String> headers() {
    return IN_SPARK ? Settings.headers() : Map.of();
  }

  /** Spark's settings are initialized: another engine may have Spark's classes, but not all that they need. */
  private static boolean isInSpark() {
    try {
      Class.forName("org.apache.spark.sql.internal.SQLConf$", true, CommitNotes.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException | LinkageError e) {
      return false;
    }
  }

  /** A class of its own, so that Spark's classes are looked for only where they exist. */
  private static final class Settings {
    static Map<String, String> headers() {
      Map<String, String> found = new TreeMap<>();
      CollectionConverters.asJava(SQLConf.get().getAllConfs())
          .forEach(
              (name, value) -> {
                if (name.startsWith(SETTING)) {
                  found.put(HEADER + name.substring(SETTING.length()).toLowerCase(Locale.ROOT), value);
                }
              });
      return found;
    }
  }
}
