package io.polarisspark;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.rest.RESTCatalog;

/** The catalogs that Iceberg's suites test, by transport. */
interface SuiteCatalogs {
  /** Opens the catalog in a directory; creates it if it does not exist. */
  RESTCatalog open(String name, Path directory, Map<String, String> more);

  /** Opens an empty catalog. */
  RESTCatalog openEmpty(String name, Path directory, Map<String, String> more);

  /** This product's catalog over the bridge. Each directory has its own store. */
  static SuiteCatalogs overBridge(String metadataFiles) {
    return new SuiteCatalogs() {
      @Override
      public RESTCatalog open(String name, Path directory, Map<String, String> more) {
        Map<String, String> properties = new HashMap<>(more);
        properties.put("store", "sqlite://" + directory.resolve("catalog.db"));
        properties.put("warehouse", directory.resolve("warehouse-" + name).toUri().toString());
        properties.put("metadata-files", metadataFiles);
        properties.put(Interpreter.PROPERTY, System.getProperty("polaris.python", "python3"));
        return initialized(new PolarisRESTCatalog(), name, properties);
      }

      @Override
      public RESTCatalog openEmpty(String name, Path directory, Map<String, String> more) {
        return open(name, directory, more);
      }
    };
  }

  /** Iceberg's REST client of a server that all tests share. Tables and namespaces of the previous test are removed. */
  static SuiteCatalogs overHttp(String metadataFiles) {
    return overHttp(metadataFiles, Map.of());
  }

  /** Iceberg's REST client of this server, on a branch other than {@code main}. */
  static SuiteCatalogs onBranch(String metadataFiles) {
    return overHttp(metadataFiles, Map.of("warehouse", "polaris@" + HttpServer.BRANCH));
  }

  private static SuiteCatalogs overHttp(String metadataFiles, Map<String, String> own) {
    return new SuiteCatalogs() {
      @Override
      public RESTCatalog open(String name, Path directory, Map<String, String> more) {
        HttpServer server = HttpServer.of(metadataFiles);
        Map<String, String> properties = new HashMap<>(more);
        properties.putAll(own);
        properties.put("uri", server.uri());
        properties.put("token", server.token());
        return initialized(new RESTCatalog(), name, properties);
      }

      @Override
      public RESTCatalog openEmpty(String name, Path directory, Map<String, String> more) {
        RESTCatalog catalog = open(name, directory, more);
        catalog.listNamespaces().forEach(namespace -> drop(catalog, namespace));
        return catalog;
      }
    };
  }

  private static RESTCatalog initialized(
      RESTCatalog catalog, String name, Map<String, String> properties) {
    catalog.initialize(name, properties);
    return catalog;
  }

  private static void drop(RESTCatalog catalog, Namespace namespace) {
    catalog.listNamespaces(namespace).forEach(below -> drop(catalog, below));
    catalog.listTables(namespace).forEach(table -> catalog.dropTable(table, false));
    catalog.listViews(namespace).forEach(catalog::dropView);
    catalog.dropNamespace(namespace);
  }
}
