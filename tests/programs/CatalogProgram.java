import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.types.Types;

/** Iceberg's own way to a catalog, no Spark: the arguments are catalog properties. Prints what it finds. */
public class CatalogProgram {
  public static void main(String[] arguments) throws Exception {
    Map<String, String> properties = new HashMap<>();
    for (String property : List.of(arguments)) {
      String[] pair = property.split("=", 2);
      properties.put(pair[0], pair[1]);
    }
    Catalog catalog = CatalogUtil.buildIcebergCatalog("lake", properties, new Configuration());
    Namespace namespace = Namespace.of("plain", "java");
    ((SupportsNamespaces) catalog).createNamespace(Namespace.of("plain"));
    ((SupportsNamespaces) catalog).createNamespace(namespace);
    Schema schema =
        new Schema(
            Types.NestedField.required(1, "id", Types.LongType.get()),
            Types.NestedField.optional(2, "item", Types.StringType.get()));
    TableIdentifier name = TableIdentifier.of(namespace, "t");
    Table table = catalog.createTable(name, schema, PartitionSpec.unpartitioned());
    for (int file = 1; file <= 3; file++) {
      AppendFiles append = table.newAppend();
      append.appendFile(
          DataFiles.builder(table.spec())
              .withPath(table.location() + "/data/" + file + ".parquet")
              .withFileSizeInBytes(100)
              .withRecordCount(file)
              .build());
      append.commit();
    }
    table.updateProperties().set("from", "java").commit();
    Table again = catalog.loadTable(name);
    System.out.println("records: " + again.currentSnapshot().summary().get("total-records"));
    int snapshots = 0;
    for (var ignored : again.snapshots()) {
      snapshots++;
    }
    System.out.println("snapshots: " + snapshots);
    System.out.println("property: " + again.properties().get("from"));
    System.out.println("tables: " + catalog.listTables(namespace));
    catalog.renameTable(name, TableIdentifier.of(namespace, "renamed"));
    System.out.println("exists: " + catalog.tableExists(name));
    if (catalog instanceof AutoCloseable closeable) {
      closeable.close();
    }
  }
}
