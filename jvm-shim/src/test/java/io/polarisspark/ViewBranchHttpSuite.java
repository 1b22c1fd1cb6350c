package io.polarisspark;

class ViewBranchHttpSuite extends ViewSuite {
  ViewBranchHttpSuite() {
    super(SuiteCatalogs.onBranch("never"));
  }
}
