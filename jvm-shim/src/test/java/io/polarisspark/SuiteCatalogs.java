package io.polarisspark;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/** The catalogs that Iceberg's suites are run against: each with a store of its own. */
final class SuiteCatalogs {
  private SuiteCatalogs() {}

  /** Opens a catalog whose store and warehouse are in a directory, creating them if they are not there yet. */
  static PolarisRESTCatalog open(
      String name, Path directory, String metadataFiles, Map<String, String> more) {
    Map<String, String> properties = new HashMap<>(more);
    properties.put("store", "sqlite://" + directory.resolve("catalog.db"));
    properties.put("warehouse", directory.resolve("warehouse").toUri().toString());
    properties.put("metadata-files", metadataFiles);
    properties.put(Interpreter.PROPERTY, System.getProperty("polaris.python", "python3"));
    PolarisRESTCatalog catalog = new PolarisRESTCatalog();
    catalog.initialize(name, properties);
    return catalog;
  }
}
