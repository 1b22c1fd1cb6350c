package io.polarisspark;

import java.util.List;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.util.SerializableSupplier;

/**
 * All snapshots of a version of a table. Iceberg needs them at every commit. Therefore only the changes since the
 * version known to this JVM are requested, and nothing if the set of snapshots has not changed since.
 */
final class SnapshotsOnDemand implements SerializableSupplier<List<Snapshot>> {

  /** All snapshots of the newest version for which they were requested. */
  record Known(SnapshotPin pin, List<Snapshot> snapshots) {}

  private final BridgeClient client;
  private final SoftCache<Known> cache;
  private final SoftCache.Key key;
  private final SnapshotPin pin;

  SnapshotsOnDemand(
      BridgeClient client, SoftCache<Known> cache, SoftCache.Key key, SnapshotPin pin) {
    this.client = client;
    this.cache = cache;
    this.key = key;
    this.pin = pin;
  }

  @Override
  public List<Snapshot> get() {
    Known known = cache.get(key);
    List<Snapshot> snapshots;
    if (known == null) {
      snapshots = client.snapshots(pin, null).appliedTo(List.of());
    } else if (known.pin().set().equals(pin.set())) {
      snapshots = known.snapshots();
    } else {
      snapshots = client.snapshots(pin, known.pin()).appliedTo(known.snapshots());
    }
    if (known == null || pin.isNewerThan(known.pin())) {
      cache.put(key, new Known(pin, snapshots));
    }
    return snapshots;
  }
}
