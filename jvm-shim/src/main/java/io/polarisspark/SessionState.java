package io.polarisspark;

/**
 * The state of the catalog that one Spark session uses: a branch, or a branch and a point of its history, as
 * {@code CALL system.use} chose it. Empty is the state that the configuration names.
 */
final class SessionState {
  /** The header of requests that names the state. */
  static final String HEADER = "Polaris-State";

  private volatile String name = "";

  String name() {
    return name;
  }

  void use(String state) {
    this.name = state;
  }
}
