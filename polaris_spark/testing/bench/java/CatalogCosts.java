import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntConsumer;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.CatalogUtil;
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
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.types.Types;

/**
 * What a catalog costs its Java callers: {@code CatalogCosts TABLES COMMITS LOADS SNAPSHOTS,... KEY=VALUE...}. Prints a
 * name and a number per line: rates per second, times in microseconds.
 */
public class CatalogCosts {
  private static final Namespace NAMESPACE = Namespace.of("bench");
  private static final int THREADS = 8;
  private static final int WARM_UP_TABLES = 100;
  private static final int WARM_UP_COMMITS = 200;
  private static final int WARM_UP_LOADS = 3_000;
  private static final int LOADED_TABLES = 100;
  private static final int COMMITS_PER_SIZE = 60;
  private static final Schema SCHEMA =
      new Schema(
          Types.NestedField.required(1, "id", Types.LongType.get()),
          Types.NestedField.optional(2, "carrier", Types.StringType.get()),
          Types.NestedField.optional(3, "time_hour", Types.TimestampType.withZone()));

  private final Catalog catalog;

  private CatalogCosts(Catalog catalog) {
    this.catalog = catalog;
  }

  public static void main(String[] arguments) {
    Map<String, String> properties = new HashMap<>();
    for (String pair : Arrays.asList(arguments).subList(4, arguments.length)) {
      String[] parts = pair.split("=", 2);
      properties.put(parts[0], parts[1]);
    }
    String name = properties.containsKey("name") ? properties.remove("name") : "bench";
    Catalog catalog = CatalogUtil.buildIcebergCatalog(name, properties, new Configuration());
    ((SupportsNamespaces) catalog).createNamespace(NAMESPACE);
    CatalogCosts costs = new CatalogCosts(catalog);
    costs.create("warm", WARM_UP_TABLES);
    costs.commit("warm0", WARM_UP_COMMITS);
    int tables = Integer.parseInt(arguments[0]);
    print("create", costs.create("t", tables));
    print("commit", costs.commit("t0", Integer.parseInt(arguments[1])));
    costs.together(tables, Integer.parseInt(arguments[1]));
    if (!arguments[2].equals("0")) {
      costs.load(Math.min(tables, LOADED_TABLES), Integer.parseInt(arguments[2]));
    }
    for (String size : arguments[3].split(",")) {
      if (!size.isEmpty()) {
        costs.sized(Integer.parseInt(size));
      }
    }
    System.exit(0);
  }

  /** Tables created per second. */
  private double create(String prefix, int tables) {
    long begun = System.nanoTime();
    for (int n = 0; n < tables; n++) {
      catalog.createTable(TableIdentifier.of(NAMESPACE, prefix + n), SCHEMA);
    }
    return tables / seconds(begun);
  }

  /** Property commits per second to one table. */
  private double commit(String name, int commits) {
    Table table = catalog.loadTable(TableIdentifier.of(NAMESPACE, name));
    long begun = System.nanoTime();
    for (int n = 0; n < commits; n++) {
      table.updateProperties().set("round", "v" + n).commit();
    }
    return commits / seconds(begun);
  }

  /** The same by several threads at once: tables of their own, and commits to one table. */
  private void together(int tables, int commits) {
    AtomicInteger failed = new AtomicInteger();
    double created =
        inThreads(
            thread -> {
              for (int n = thread; n < tables; n += THREADS) {
                catalog.createTable(TableIdentifier.of(NAMESPACE, "p" + n), SCHEMA);
              }
            });
    print("create together", tables / created);
    double committed =
        inThreads(
            thread -> {
              Table table = catalog.loadTable(TableIdentifier.of(NAMESPACE, "p0"));
              for (int n = thread; n < commits; n += THREADS) {
                try {
                  table.updateProperties().set("round" + thread, "v" + n).commit();
                } catch (CommitFailedException e) {
                  failed.incrementAndGet();
                }
              }
            });
    print("commit together", (commits - failed.get()) / committed);
    print("failed together", failed.get());
  }

  /** How many seconds the threads take together. */
  private static double inThreads(IntConsumer work) {
    long begun = System.nanoTime();
    List<CompletableFuture<Void>> running = new ArrayList<>();
    ExecutorService threads = Executors.newFixedThreadPool(THREADS);
    for (int thread = 0; thread < THREADS; thread++) {
      int number = thread;
      running.add(CompletableFuture.runAsync(() -> work.accept(number), threads));
    }
    running.forEach(CompletableFuture::join);
    threads.shutdown();
    return seconds(begun);
  }

  private void load(int tables, int loads) {
    double[] times = new double[loads];
    for (int call = -WARM_UP_LOADS; call < loads; call++) {
      TableIdentifier name = TableIdentifier.of(NAMESPACE, "t" + Math.floorMod(call, tables));
      long begun = System.nanoTime();
      catalog.loadTable(name);
      if (call >= 0) {
        times[call] = seconds(begun) * 1e6;
      }
    }
    Arrays.sort(times);
    print("load p50", times[loads / 2]);
    print("load p99", times[loads * 99 / 100]);
  }

  /** Loads and commits of a table that has so many snapshots. */
  private void sized(int snapshots) {
    TableIdentifier name = TableIdentifier.of(NAMESPACE, "sized" + snapshots);
    Table table = catalog.createTable(name, SCHEMA);
    table.newFastAppend().appendFile(file(0)).commit();
    fill(table, snapshots);

    List<Double> loads = new ArrayList<>();
    List<Double> properties = new ArrayList<>();
    List<Double> appends = new ArrayList<>();
    for (int n = 1; n <= COMMITS_PER_SIZE; n++) {
      long begun = System.nanoTime();
      Table loaded = catalog.loadTable(name);
      loads.add(seconds(begun) * 1e6);
      begun = System.nanoTime();
      loaded.updateProperties().set("round", "v" + n).commit();
      properties.add(seconds(begun) * 1e6);
      begun = System.nanoTime();
      loaded.newFastAppend().appendFile(file(n)).commit();
      appends.add(seconds(begun) * 1e6);
    }
    print("load@" + snapshots, median(loads));
    print("property@" + snapshots, median(properties));
    print("append@" + snapshots, median(appends));
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

  private static double median(List<Double> times) {
    return times.stream().sorted().skip(times.size() / 2).findFirst().orElseThrow();
  }

  private static double seconds(long begun) {
    return (System.nanoTime() - begun) / 1e9;
  }

  private static void print(String what, double figure) {
    System.out.println("figure " + what.replace(' ', '_') + " " + figure);
  }
}
