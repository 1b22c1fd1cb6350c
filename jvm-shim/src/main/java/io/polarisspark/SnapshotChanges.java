package io.polarisspark;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.iceberg.Snapshot;

/**
 * What leads from known snapshots to those of another version.
 *
 * @param complete whether {@code added} are all snapshots, whatever was known
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
