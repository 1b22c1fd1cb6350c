package io.polarisspark;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.iceberg.Snapshot;

/**
 * The difference between the known snapshots and the snapshots of another version.
 *
 * @param complete whether {@code added} has all snapshots of the other version
 */
record SnapshotChanges(boolean complete, Set<Long> removed, List<Snapshot> added) {

  List<Snapshot> appliedTo(List<Snapshot> known) {
    if (complete) {
      return added;
    }
    List<Snapshot> result = new ArrayList<>(known.size() + added.size());
    for (Snapshot snapshot : known) {
      if (removed.isEmpty() || !removed.contains(snapshot.snapshotId())) {
        result.add(snapshot);
      }
    }
    result.addAll(added);
    return result;
  }
}
