package io.polarisspark;

class CatalogBranchHttpSuite extends CatalogSuite {
  CatalogBranchHttpSuite() {
    super(SuiteCatalogs.onBranch("never"));
  }
}
