package io.polarisspark;

import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ClosedByInterruptException;
import java.util.ArrayDeque;
import java.util.Deque;

/**
 * The connections to a Python process. Each running request uses one. Some idle connections are kept for later
 * requests.
 */
final class PythonConnections {
  private static final int KEPT = 32;

  private final UnixDomainSocketAddress address;
  private final String token;
  private final Deque<PythonConnection> idle = new ArrayDeque<>();
  private boolean closed;

  PythonConnections(String path, String token) {
    this.address = UnixDomainSocketAddress.of(path);
    this.token = token;
  }

  /**
   * Sends a request and waits for the response, even if the thread is interrupted, because the result of a commit must
   * be known. An interrupt closes the thread's connection. The request is then sent again on another connection; its
   * operation id ensures that it is carried out only once.
   */
  Reply request(String head, String body) throws IOException {
    boolean interrupted = Thread.interrupted();
    try {
      while (true) {
        try {
          return requestOnce(head, body);
        } catch (ClosedByInterruptException e) {
          interrupted = true;
          Thread.interrupted();
        }
      }
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Closes the idle connections. Running requests end with the process. */
  synchronized void close() {
    closed = true;
    idle.forEach(PythonConnection::close);
    idle.clear();
  }

  /**
   * Sends a request and waits for the response.
   *
   * @throws ClosedByInterruptException if the thread is interrupted meanwhile; the request may be carried out all the
   *     same
   */
  Reply requestOnce(String head, String body) throws IOException {
    PythonConnection connection = take();
    Reply reply = null;
    try {
      reply = connection.request(head, body);
      return reply;
    } finally {
      if (reply == null || !keep(connection)) {
        connection.close();
      }
    }
  }

  private PythonConnection take() throws IOException {
    PythonConnection last;
    synchronized (this) {
      last = idle.pollLast();
    }
    return last == null ? new PythonConnection(address, token) : last;
  }

  private synchronized boolean keep(PythonConnection connection) {
    return !closed && idle.size() < KEPT && idle.add(connection);
  }
}
