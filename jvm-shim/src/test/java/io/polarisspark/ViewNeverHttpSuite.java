package io.polarisspark;

class ViewNeverHttpSuite extends ViewSuite {
  ViewNeverHttpSuite() {
    super(SuiteCatalogs.overHttp("never"));
  }
}
