import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntFunction;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.types.Types;

/**
 * What a catalog costs its Java callers: {@code CatalogCosts SECONDS WORK,WORK,... KEY=VALUE...}.
 *
 * <p>A work is {@code create:THREADS}, {@code one-table:THREADS} (property commits), {@code many-tables:THREADS} (the
 * same, a table each), {@code load:THREADS}, each for this number of seconds, after a quarter of them to warm up, or {@code
 * sized:SNAPSHOTS:CALLS}. Prints a line of each: {@code figure WORK RATE FAILURES P50 P99}, calls per second and
 * microseconds.
 */
public class CatalogCosts {
  private static final Namespace NAMESPACE = Namespace.of("bench");
  private static final int LOADED_TABLES = 20;
  private static final int WARM_UP = 4;
  private static final Schema SCHEMA =
      new Schema(
          Types.NestedField.required(1, "id", Types.LongType.get()),
          Types.NestedField.optional(2, "carrier", Types.StringType.get()),
          Types.NestedField.optional(3, "time_hour", Types.TimestampType.withZone()));

  private final Catalog catalog;
  private final double seconds;
  private int names = 0;

  private CatalogCosts(Catalog catalog, double seconds) {
    this.catalog = catalog;
    this.seconds = seconds;
  }

  public static void main(String[] arguments) {
    Map<String, String> properties = new HashMap<>();
    for (String pair : Arrays.asList(arguments).subList(2, arguments.length)) {
      String[] parts = pair.split("=", 2);
      properties.put(parts[0], parts[1]);
    }
    Catalog catalog = CatalogUtil.buildIcebergCatalog("bench", properties, new Configuration());
    SupportsNamespaces namespaces = (SupportsNamespaces) catalog;
    if (!namespaces.namespaceExists(NAMESPACE)) {
      namespaces.createNamespace(NAMESPACE);
    }
    CatalogCosts costs = new CatalogCosts(catalog, Double.parseDouble(arguments[0]));
    for (String work : arguments[1].split(",")) {
      costs.measure(work);
    }
    System.exit(0);
  }

  private void measure(String work) {
    String[] parts = work.split(":");
    int number = Integer.parseInt(parts[1]);
    if (parts[0].equals("sized")) {
      new SizedTables(catalog, Integer.parseInt(parts[2])).measure(newName(), SCHEMA, number);
      return;
    }
    IntFunction<Caller> callers = callers(parts[0], number);
    run(number, seconds / WARM_UP, callers);
    Reached reached = run(number, seconds, callers);
    if (reached.times.length == 0 && number == 1) {
      throw new IllegalStateException("every call of " + work + " failed", reached.error);
    }
    System.out.printf(
        Locale.ROOT,
        "figure %s %f %d %f %f%n",
        work,
        reached.times.length / reached.took,
        reached.failures,
        reached.microseconds(0.5),
        reached.microseconds(0.99));
  }

  /** What each thread calls again and again, given its number and the number of the call. */
  private IntFunction<Caller> callers(String work, int threads) {
    if (work.equals("create")) {
      return thread -> {
        String own = newName().name() + "_";
        return n -> catalog.createTable(TableIdentifier.of(NAMESPACE, own + n), SCHEMA);
      };
    }
    TableIdentifier[] tables = new TableIdentifier[tables(work, threads)];
    for (int n = 0; n < tables.length; n++) {
      tables[n] = newName();
      catalog.createTable(tables[n], SCHEMA);
    }
    if (work.equals("load")) {
      return thread -> n -> catalog.loadTable(tables[(thread + n) % tables.length]);
    }
    return thread -> {
      Table table = catalog.loadTable(tables[thread % tables.length]);
      return n -> table.updateProperties().set("round" + thread, "v" + n).commit();
    };
  }

  private static int tables(String work, int threads) {
    switch (work) {
      case "one-table":
        return 1;
      case "many-tables":
        return threads;
      case "load":
        return LOADED_TABLES;
      default:
        throw new IllegalArgumentException("unknown work: " + work);
    }
  }

  private TableIdentifier newName() {
    return TableIdentifier.of(NAMESPACE, "t" + names++ + "_" + System.nanoTime());
  }

  private interface Caller {
    void call(int number);
  }

  /** Times of successful calls in nanoseconds, ascending. */
  private record Reached(long[] times, int failures, double took, Throwable error) {
    double microseconds(double share) {
      return times.length == 0 ? 0 : times[(int) (times.length * share)] / 1e3;
    }
  }

  private static Reached run(int threads, double seconds, IntFunction<Caller> callers) {
    List<Caller> made = new ArrayList<>();
    for (int thread = 0; thread < threads; thread++) {
      made.add(callers.apply(thread));
    }
    AtomicReference<RuntimeException> error = new AtomicReference<>();
    ExecutorService executor = Executors.newFixedThreadPool(threads);
    long begun = System.nanoTime();
    long end = begun + (long) (seconds * 1e9);
    List<CompletableFuture<List<Long>>> running = new ArrayList<>();
    for (Caller caller : made) {
      running.add(CompletableFuture.supplyAsync(() -> repeat(caller, end, error), executor));
    }
    List<Long> times = new ArrayList<>();
    running.forEach(one -> times.addAll(one.join()));
    double took = (System.nanoTime() - begun) / 1e9;
    executor.shutdown();
    long[] succeeded = times.stream().filter(time -> time >= 0).mapToLong(Long::longValue).sorted().toArray();
    return new Reached(succeeded, times.size() - succeeded.length, took, error.get());
  }

  /** How long each call took, nanoseconds; -1 for one that failed. */
  private static List<Long> repeat(Caller caller, long end, AtomicReference<RuntimeException> error) {
    List<Long> times = new ArrayList<>();
    for (int n = 0; System.nanoTime() < end; n++) {
      long before = System.nanoTime();
      try {
        caller.call(n);
        times.add(System.nanoTime() - before);
      } catch (RuntimeException e) {
        error.set(e);
        times.add(-1L);
      }
    }
    return times;
  }
}
