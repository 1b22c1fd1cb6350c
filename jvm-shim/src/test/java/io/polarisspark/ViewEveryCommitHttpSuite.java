package io.polarisspark;

class ViewEveryCommitHttpSuite extends ViewSuite {
  ViewEveryCommitHttpSuite() {
    super(SuiteCatalogs.overHttp("every-commit"));
  }
}
