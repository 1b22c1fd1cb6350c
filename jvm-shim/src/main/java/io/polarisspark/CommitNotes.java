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

  /** Returns headers with the notes of the calling thread's session; an empty map if the engine is not Spark. */
  static Map<String, String> headers() {
    return IN_SPARK ? Settings.headers() : Map.of();
  }

  /**
   * Returns whether the engine is Spark. Initializes Spark's settings to find out, because another engine may have some
   * of Spark's classes without the classes that these need.
   */
  private static boolean isInSpark() {
    try {
      Class.forName("org.apache.spark.sql.internal.SQLConf$", true, CommitNotes.class.getClassLoader());
      return true;
    } catch (ClassNotFoundException | LinkageError e) {
      return false;
    }
  }

  /** The code that uses Spark's classes. It is a separate class so that other engines do not load it. */
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
