package io.polarisspark.incremental;

/**
 * The amount of data that a scan reads.
 *
 * @param files number of data files
 * @param bytes size of the data files
 * @param rows number of rows in the data files
 */
record Amount(long files, long bytes, long rows) {
  static final Amount NONE = new Amount(0, 0, 0);

  Amount plus(Amount other) {
    return new Amount(files + other.files, bytes + other.bytes, rows + other.rows);
  }
}
