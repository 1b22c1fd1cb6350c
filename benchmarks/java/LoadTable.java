import io.polarisspark.PolarisRESTCatalog;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.TableIdentifier;

/** Median time of loadTable through the shim: {@code LoadTable NAMESPACE TABLE CALLS [KEY=VALUE ...]}. */
public class LoadTable {
  /** Calls before the measured ones: the compiler takes some ten thousand to settle. */
  private static final int WARM_UP = 20_000;

  public static void main(String[] arguments) {
    Map<String, String> properties = new HashMap<>();
    for (String pair : Arrays.asList(arguments).subList(3, arguments.length)) {
      String[] parts = pair.split("=", 2);
      properties.put(parts[0], parts[1]);
    }
    int calls = Integer.parseInt(arguments[2]);
    TableIdentifier table = TableIdentifier.of(arguments[0], arguments[1]);
    PolarisRESTCatalog catalog = new PolarisRESTCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize("bench", properties);
    double[] microseconds = new double[calls];
    for (int call = -WARM_UP; call < calls; call++) {
      long begun = System.nanoTime();
      catalog.loadTable(table);
      if (call >= 0) {
        microseconds[call] = (System.nanoTime() - begun) / 1e3;
      }
    }
    Arrays.sort(microseconds);
    System.out.println("median " + microseconds[calls / 2]);
    System.exit(0);
  }
}
