package io.polarisspark;

/**
 * The state of the catalog that one Spark session uses: a branch, or a branch and a point of its history, as chosen by
 * {@code CALL system.use}. If it is empty, the session uses the state in the configuration.
 */
final class SessionState {
  /** Header of requests with the state. */
  static final String HEADER = "Polaris-State";

  private volatile String name = "";

  String name() {
    return name;
  }

  void use(String state) {
    this.name = state;
  }
}
