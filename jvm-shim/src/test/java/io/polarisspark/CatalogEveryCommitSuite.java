package io.polarisspark;

class CatalogEveryCommitSuite extends CatalogSuite {
  CatalogEveryCommitSuite() {
    super(SuiteCatalogs.overBridge("every-commit"));
  }
}
