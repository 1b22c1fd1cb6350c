package io.polarisspark;

import java.lang.ref.SoftReference;
import java.util.LinkedHashMap;
import java.util.Map;

/** What was used last, of some tables. It goes when memory is needed. */
final class SoftCache<V> {
  /** As many as Iceberg's REST catalog keeps. */
  private static final int TABLES = 100;

  /** A table of the catalog that a configuration describes, by whatever identifies it there. */
  record Key(Map<String, String> configuration, String table) {}

  private final Map<Key, SoftReference<V>> tables =
      new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<Key, SoftReference<V>> eldest) {
          return size() > TABLES;
        }
      };

  /** What is kept of a table, or null. */
  synchronized V get(Key key) {
    SoftReference<V> found = tables.get(key);
    return found == null ? null : found.get();
  }

  synchronized void put(Key key, V value) {
    tables.put(key, new SoftReference<>(value));
  }
}
