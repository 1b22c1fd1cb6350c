package io.polarisspark;

import java.util.List;
import java.util.Map;
import org.apache.iceberg.Labels;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.rest.RemoteSigningConfig;
import org.apache.iceberg.rest.credentials.Credential;
import org.apache.iceberg.rest.responses.LoadTableResponse;
import org.apache.iceberg.util.SerializableSupplier;

/**
 * A response without all snapshots. Its metadata requests the missing snapshots when they are needed. {@link
 * #tableMetadata()} returns the same metadata each time, because building other metadata from it would request the
 * snapshots.
 */
final class TableResponse extends LoadTableResponse {
  private final LoadTableResponse answered;
  private final SerializableSupplier<List<Snapshot>> snapshots;
  private TableMetadata metadata;

  TableResponse(LoadTableResponse answered, SerializableSupplier<List<Snapshot>> snapshots) {
    this.answered = answered;
    this.snapshots = snapshots;
  }

  @Override
  public void validate() {
    answered.validate();
  }

  @Override
  public String metadataLocation() {
    return answered.metadataLocation();
  }

  @Override
  public TableMetadata tableMetadata() {
    if (metadata == null) {
      metadata =
          TableMetadata.buildFrom(answered.tableMetadata())
              .withMetadataLocation(answered.metadataLocation())
              .setSnapshotsSupplier(snapshots)
              .build();
    }
    return metadata;
  }

  @Override
  public Map<String, String> config() {
    return answered.config();
  }

  @Override
  public List<Credential> credentials() {
    return answered.credentials();
  }

  @Override
  public RemoteSigningConfig remoteSigningConfig() {
    return answered.remoteSigningConfig();
  }

  @Override
  public Labels labels() {
    return answered.labels();
  }

  @Override
  public String toString() {
    return answered.toString();
  }
}
