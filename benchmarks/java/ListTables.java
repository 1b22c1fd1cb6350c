import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.Schema;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.types.Types;

/**
 * Listing all tables of one namespace: {@code ListTables TABLES CALLS KEY=VALUE...}. With no tables it creates the
 * namespace with one table; else it prints the median time of a listing, in milliseconds.
 */
public class ListTables {
  private static final Namespace NAMESPACE = Namespace.of("bench");
  private static final int WARM_UP = 20;

  public static void main(String[] arguments) {
    Map<String, String> properties = new HashMap<>();
    for (String pair : Arrays.asList(arguments).subList(2, arguments.length)) {
      String[] parts = pair.split("=", 2);
      properties.put(parts[0], parts[1]);
    }
    String name = properties.remove("name");
    int tables = Integer.parseInt(arguments[0]);
    Catalog catalog = CatalogUtil.buildIcebergCatalog(name, properties, new Configuration());
    if (tables == 0) {
      ((SupportsNamespaces) catalog).createNamespace(NAMESPACE);
      Schema schema = new Schema(Types.NestedField.required(1, "id", Types.LongType.get()));
      catalog.createTable(TableIdentifier.of(NAMESPACE, "first"), schema);
    } else {
      double[] milliseconds = new double[Integer.parseInt(arguments[1])];
      for (int call = -WARM_UP; call < milliseconds.length; call++) {
        long begun = System.nanoTime();
        List<TableIdentifier> found = catalog.listTables(NAMESPACE);
        if (found.size() != tables) {
          throw new IllegalStateException("found " + found.size() + " tables");
        }
        if (call >= 0) {
          milliseconds[call] = (System.nanoTime() - begun) / 1e6;
        }
      }
      Arrays.sort(milliseconds);
      System.out.println("median " + milliseconds[milliseconds.length / 2]);
    }
    System.exit(0);
  }
}
