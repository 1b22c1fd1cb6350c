package io.polarisspark;

class CatalogEveryCommitSuite extends CatalogSuite {
  CatalogEveryCommitSuite() {
    super("every-commit");
  }
}
