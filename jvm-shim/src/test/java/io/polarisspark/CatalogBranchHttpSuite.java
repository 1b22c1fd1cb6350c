package io.polarisspark;

/**
 * Iceberg's suite of catalogs on a branch of a server's catalog, through Iceberg's Java {@code RESTCatalog}. Flink and
 * Trino use this client, so the suite stands for them, too.
 */
class CatalogBranchHttpSuite extends CatalogSuite {
  CatalogBranchHttpSuite() {
    super(SuiteCatalogs.onBranch("never"));
  }
}
