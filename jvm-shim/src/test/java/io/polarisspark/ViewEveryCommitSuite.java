package io.polarisspark;

class ViewEveryCommitSuite extends ViewSuite {
  ViewEveryCommitSuite() {
    super(SuiteCatalogs.overBridge("every-commit"));
  }
}
