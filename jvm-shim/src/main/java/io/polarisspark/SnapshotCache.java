package io.polarisspark;

import java.lang.ref.SoftReference;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.Snapshot;

/**
 * The snapshots of the tables used last, each of the newest version that was asked for. They go when memory is needed.
 */
final class SnapshotCache {
  /** As many as Iceberg's REST catalog keeps. */
  private static final int TABLES = 100;

  /** A table of a catalog. */
  record Key(Map<String, String> configuration, String table) {}

  /** All snapshots of a version. */
  record Known(SnapshotPin pin, List<Snapshot> snapshots) {}

  private final Map<Key, SoftReference<Known>> tables =
      new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<Key, SoftReference<Known>> eldest) {
          return size() > TABLES;
        }
      };

  /** What is known of a table, or null. */
  synchronized Known get(Key key) {
    SoftReference<Known> found = tables.get(key);
    return found == null ? null : found.get();
  }

  /** Keeps what is known of a version, unless a newer one is known. */
  synchronized void put(Key key, Known known) {
    Known old = get(key);
    if (old == null || known.pin().isNewerThan(old.pin())) {
      tables.put(key, new SoftReference<>(known));
    }
  }
}
