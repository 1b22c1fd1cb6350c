package io.polarisspark;

class ViewEveryCommitSuite extends ViewSuite {
  ViewEveryCommitSuite() {
    super("every-commit");
  }
}
