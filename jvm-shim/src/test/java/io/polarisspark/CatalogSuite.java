package io.polarisspark;

import static org.assertj.core.api.Assertions.assertThat;

import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.catalog.CatalogTests;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.RESTCatalog;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Iceberg's suite of catalogs of tables, for one transport and value of {@code metadata-files}. */
abstract class CatalogSuite extends CatalogTests<RESTCatalog> {
  /** The configuration that the suite expects of a REST catalog, as in Iceberg's test of its REST catalog. */
  private static final Map<String, String> DEFAULTS =
      Map.of(
          "table-default.default-key1", "catalog-default-key1",
          "table-default.default-key2", "catalog-default-key2",
          "table-default.override-key3", "catalog-default-key3",
          "table-override.override-key3", "catalog-override-key3",
          "table-override.override-key4", "catalog-override-key4");

  @TempDir Path directory;

  private final SuiteCatalogs catalogs;
  private RESTCatalog catalog;

  CatalogSuite(SuiteCatalogs catalogs) {
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
  protected RESTCatalog initCatalog(String name, Map<String, String> additional) {
    Map<String, String> properties = new HashMap<>(DEFAULTS);
    properties.putAll(additional);
    return catalogs.open(name, directory, properties);
  }

  /** Puts files into a directory that is removed after the test. */
  @Override
  protected String baseTableLocation(TableIdentifier identifier) {
    return directory.resolve("tables").toUri() + identifier.namespace().toString() + "/" + identifier.name();
  }

  /**
   * Replaces a test that expects the message of a catalog that opens the metadata file, as Iceberg's test of its REST
   * catalog does. Here the metadata is in rows, so the table can be loaded without the file.
   */
  @Test
  @Override
  public void testLoadTableWithMissingMetadataFile(@TempDir Path unused) {
    catalog.createNamespace(TBL.namespace());
    BaseTable table = (BaseTable) catalog.buildTable(TBL, SCHEMA).create();
    table.io().deleteFile(table.operations().current().metadataFileLocation());
    assertThat(catalog.loadTable(TBL).schema().asStruct()).isEqualTo(TABLE_SCHEMA.asStruct());
  }

  @Override
  protected boolean supportsNestedNamespaces() {
    return true;
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
