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
 * An answer that left snapshots out, whose metadata fetches them when they are asked for. The metadata comes out of
 * {@link #tableMetadata()} as it is kept: building anything from it would fetch them.
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
