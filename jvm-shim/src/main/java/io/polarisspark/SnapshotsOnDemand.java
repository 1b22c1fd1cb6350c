package io.polarisspark;

import java.util.List;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.util.SerializableSupplier;

/**
 * All snapshots of one version of a table. Iceberg asks for them at every commit, so only what changed since the version
 * that this JVM knows is fetched, and nothing if the commits in between left the snapshots alone.
 */
final class SnapshotsOnDemand implements SerializableSupplier<List<Snapshot>> {

  /** All snapshots of a version, the newest one that somebody asked for. */
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
