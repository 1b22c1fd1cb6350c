package io.polarisspark.incremental;

/** A query cannot be refreshed incrementally. The message completes "not incremental, because". */
final class NotIncrementalException extends RuntimeException {
  NotIncrementalException(String message) {
    super(message);
  }
}
