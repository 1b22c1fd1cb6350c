package io.polarisspark;

class CatalogEveryCommitHttpSuite extends CatalogSuite {
  CatalogEveryCommitHttpSuite() {
    super(SuiteCatalogs.overHttp("every-commit"));
  }
}
