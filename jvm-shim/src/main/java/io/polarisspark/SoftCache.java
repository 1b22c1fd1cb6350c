package io.polarisspark;

import java.lang.ref.SoftReference;
import java.util.LinkedHashMap;
import java.util.Map;

/** A cache of values of the most recently used tables. The JVM may drop values to free memory. */
final class SoftCache<V> {
  /** Maximum number of tables, as in Iceberg's REST catalog. */
  private static final int TABLES = 100;

  /** A table of the catalog of a configuration, with its path or stable id. */
  record Key(Map<String, String> configuration, String table) {}

  private final Map<Key, SoftReference<V>> tables =
      new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<Key, SoftReference<V>> eldest) {
          return size() > TABLES;
        }
      };

  /** Returns the value of a table; null if there is none. */
  synchronized V get(Key key) {
    SoftReference<V> found = tables.get(key);
    return found == null ? null : found.get();
  }

  synchronized void put(Key key, V value) {
    tables.put(key, new SoftReference<>(value));
  }
}
