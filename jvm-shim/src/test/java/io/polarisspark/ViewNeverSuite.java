package io.polarisspark;

class ViewNeverSuite extends ViewSuite {
  ViewNeverSuite() {
    super(SuiteCatalogs.overBridge("never"));
  }
}
