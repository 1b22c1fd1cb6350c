package io.polarisspark;

class CatalogNeverSuite extends CatalogSuite {
  CatalogNeverSuite() {
    super(SuiteCatalogs.overBridge("never"));
  }
}
