package io.polarisspark;

class CatalogNeverHttpSuite extends CatalogSuite {
  CatalogNeverHttpSuite() {
    super(SuiteCatalogs.overHttp("never"));
  }
}
