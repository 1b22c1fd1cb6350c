package io.polarisspark;

import java.nio.file.Path;
import java.util.Map;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.view.ViewCatalogTests;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.io.TempDir;

/** Iceberg's suite of catalogs of views, for one transport and value of {@code metadata-files}. */
abstract class ViewSuite extends ViewCatalogTests<RESTCatalog> {
  /** The configuration that the suite expects of a REST catalog, as in Iceberg's test of its REST catalog. */
  private static final Map<String, String> DEFAULTS =
      Map.of(
          "view-default.key1", "catalog-default-key1",
          "view-default.key2", "catalog-default-key2",
          "view-default.key3", "catalog-default-key3",
          "view-override.key3", "catalog-override-key3",
          "view-override.key4", "catalog-override-key4");

  @TempDir Path directory;

  private final SuiteCatalogs catalogs;
  private RESTCatalog catalog;

  ViewSuite(SuiteCatalogs catalogs) {
    this.catalogs = catalogs;
  }

  @BeforeEach
  void openCatalog() {
    catalog = catalogs.openEmpty("prod", directory, DEFAULTS);
  }

  @AfterEach
  void closeCatalog() throws Exception {
    catalog.close();
  }

  @Override
  protected RESTCatalog catalog() {
    return catalog;
  }

  @Override
  protected Catalog tableCatalog() {
    return catalog;
  }

  @Override
  protected boolean requiresNamespaceCreate() {
    return true;
  }

  @Override
  protected boolean supportsServerSideRetry() {
    return true;
  }
}
