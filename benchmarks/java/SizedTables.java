import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileFormat;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotParser;
import org.apache.iceberg.SnapshotRef;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.TableIdentifier;

/** What loads and commits of a table cost that has many snapshots: median microseconds. */
class SizedTables {
  private final Catalog catalog;
  private final int calls;

  SizedTables(Catalog catalog, int calls) {
    this.catalog = catalog;
    this.calls = calls;
  }

  /** Prints a load, a property commit and a fast append of a new table with this number of snapshots. */
  void measure(TableIdentifier name, Schema schema, int snapshots) {
    Table table = catalog.createTable(name, schema);
    table.newFastAppend().appendFile(file(0)).commit();
    fill(table, snapshots);

    List<Double> loads = new ArrayList<>();
    List<Double> properties = new ArrayList<>();
    List<Double> appends = new ArrayList<>();
    for (int n = 1; n <= calls; n++) {
      long begun = System.nanoTime();
      Table loaded = catalog.loadTable(name);
      loads.add(microseconds(begun));
      begun = System.nanoTime();
      loaded.updateProperties().set("round", "v" + n).commit();
      properties.add(microseconds(begun));
      begun = System.nanoTime();
      loaded.newFastAppend().appendFile(file(n)).commit();
      appends.add(microseconds(begun));
    }
    print("load@" + snapshots, loads);
    print("property@" + snapshots, properties);
    print("append@" + snapshots, appends);
  }

  /** Adds snapshots that share the first one's manifest list, in one commit. */
  private static void fill(Table table, int snapshots) {
    TableOperations operations = ((BaseTable) table).operations();
    TableMetadata base = operations.refresh();
    Snapshot first = base.currentSnapshot();
    TableMetadata.Builder builder = TableMetadata.buildFrom(base);
    for (int n = 1; n < snapshots; n++) {
      builder.setBranchSnapshot(
          SnapshotParser.fromJson(
              String.format(
                  "{\"snapshot-id\":%d,\"parent-snapshot-id\":%d,\"sequence-number\":%d,\"timestamp-ms\":%d,"
                      + "\"summary\":{\"operation\":\"append\",\"added-data-files\":\"1\",\"added-records\":\"1\","
                      + "\"total-records\":\"1\",\"total-data-files\":\"1\"},\"manifest-list\":\"%s\",\"schema-id\":0}",
                  n,
                  n == 1 ? first.snapshotId() : n - 1,
                  first.sequenceNumber() + n,
                  first.timestampMillis() + n,
                  first.manifestListLocation())),
          SnapshotRef.MAIN_BRANCH);
    }
    if (snapshots > 1) {
      operations.commit(base, builder.build());
    }
  }

  private static DataFile file(int number) {
    return DataFiles.builder(PartitionSpec.unpartitioned())
        .withPath("/nowhere/" + number + ".parquet")
        .withFormat(FileFormat.PARQUET)
        .withFileSizeInBytes(1_000)
        .withRecordCount(1)
        .build();
  }

  private static double microseconds(long begun) {
    return (System.nanoTime() - begun) / 1e3;
  }

  private static void print(String what, List<Double> times) {
    double median = times.stream().sorted().skip(times.size() / 2).findFirst().orElseThrow();
    System.out.printf(Locale.ROOT, "figure %s %f 0%n", what, median);
  }
}
