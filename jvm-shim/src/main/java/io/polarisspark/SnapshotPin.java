package io.polarisspark;

import java.util.Map;

/**
 * What the header of an answer says of the snapshots that it left out: the table's stable id, its version, a fingerprint
 * that stays the same while the set of its snapshots does, and the table's UUID.
 */
record SnapshotPin(String table, String version, String set, String uuid) {
  private static final String HEADER = "Polaris-Snapshots";

  /** The pin of an answer, or null if it left nothing out. */
  static SnapshotPin of(Map<String, String> headers) {
    String text = headers.get(HEADER);
    if (text == null) {
      return null;
    }
    String[] parts = text.split("-", 4);
    return new SnapshotPin(parts[0], parts[1], parts[2], parts[3]);
  }

  String path() {
    return "v1/tables/" + table + "/versions/" + version + "/snapshots";
  }

  /**
   * The query that asks for all snapshots, or for what changed since a known version.
   *
   * @param known may be null
   */
  Map<String, String> query(SnapshotPin known) {
    return known == null ? Map.of("uuid", uuid) : Map.of("uuid", uuid, "since", known.version);
  }

  /** Versions are numbered in the order in which they were made. */
  boolean isNewerThan(SnapshotPin other) {
    return Long.parseUnsignedLong(version, 16) > Long.parseUnsignedLong(other.version, 16);
  }
}
