package io.polarisspark;

import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ClosedByInterruptException;
import java.util.ArrayDeque;
import java.util.Deque;

/** The connections to one child: as many as requests are under way, of which some are kept for the next ones. */
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
   * Sends a request and waits for its answer, whether or not the thread is interrupted meanwhile: what an interrupted
   * commit came to must be known. An interrupt closes the connection that its thread uses, so the request is sent again
   * on another; its operation id has it carried out once.
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

  /** Closes the connections; requests under way end with the child. */
  synchronized void close() {
    closed = true;
    idle.forEach(PythonConnection::close);
    idle.clear();
  }

  /**
   * Sends a request and waits for its answer.
   *
   * @throws ClosedByInterruptException if the thread is interrupted meanwhile; the request may be carried out all the same
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
