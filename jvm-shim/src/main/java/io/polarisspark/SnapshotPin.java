package io.polarisspark;

import java.util.Map;

/**
 * The header of a response without all snapshots: the table's stable id, its version, a fingerprint of the set of its
 * snapshots, and the table's UUID.
 */
record SnapshotPin(String table, String version, String set, String uuid) {
  private static final String HEADER = "Polaris-Snapshots";

  /** Returns the pin of a response; null if the response has all snapshots. */
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
   * Returns the query parameters to request all snapshots, or the changes since a known version.
   *
   * @param known the known version; null to request all snapshots
   */
  Map<String, String> query(SnapshotPin known) {
    return known == null ? Map.of("uuid", uuid) : Map.of("uuid", uuid, "since", known.version);
  }

  /** Returns whether this version is newer: version numbers increase. */
  boolean isNewerThan(SnapshotPin other) {
    return Long.parseUnsignedLong(version, 16) > Long.parseUnsignedLong(other.version, 16);
  }
}
