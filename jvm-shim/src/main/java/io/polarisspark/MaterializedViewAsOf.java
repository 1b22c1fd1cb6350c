package io.polarisspark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The rows of an earlier refresh of a materialized view: a snapshot of its storage table, without the columns that the
 * view does not show. It can only be read.
 */
final class MaterializedViewAsOf implements SupportsRead {
  private final String name;
  private final SupportsRead stored;
  private final Column[] columns;

  /**
   * @param stored the storage table as of the snapshot
   * @param shown names of the columns of the view
   */
  MaterializedViewAsOf(String name, Table stored, JsonNode shown) {
    this.name = name;
    this.stored = (SupportsRead) stored;
    List<Column> found = new ArrayList<>();
    for (JsonNode column : shown) {
      Arrays.stream(stored.columns())
          .filter(each -> each.name().equals(column.asText()))
          .forEach(found::add);
    }
    this.columns = found.toArray(Column[]::new);
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Column[] columns() {
    return columns;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of(TableCapability.BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return stored.newScanBuilder(options);
  }

  /** Plans that read equal tables share cached rows. */
  @Override
  public boolean equals(Object other) {
    return other instanceof MaterializedViewAsOf that
        && name.equals(that.name)
        && stored.equals(that.stored)
        && Arrays.equals(columns, that.columns);
  }

  @Override
  public int hashCode() {
    return stored.hashCode();
  }
}
