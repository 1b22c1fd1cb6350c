package io.polarisspark;

import java.io.EOFException;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;

/**
 * A connection to the Python process, which answers one request at a time. A frame in either direction consists of the
 * length of its head and the length of its body (four bytes each, big-endian), the head and the body. The head of the
 * first frame is the token; this frame gets no response.
 */
final class PythonConnection {
  private static final int BUFFER_BYTES = 64 * 1024;
  private static final int LENGTHS_BYTES = 8;
  private static final byte[] NOTHING = new byte[0];

  private final SocketChannel channel;

  /** Buffer for both directions, which take turns. */
  private final ByteBuffer buffer = ByteBuffer.allocateDirect(BUFFER_BYTES);

  PythonConnection(UnixDomainSocketAddress address, String token) throws IOException {
    this.channel = SocketChannel.open(address);
    try {
      send(token.getBytes(StandardCharsets.UTF_8), NOTHING);
    } catch (IOException e) {
      close();
      throw e;
    }
  }

  Reply request(String head, String body) throws IOException {
    send(
        head.getBytes(StandardCharsets.UTF_8),
        body == null ? NOTHING : body.getBytes(StandardCharsets.UTF_8));
    buffer.limit(0);
    while (buffer.remaining() < LENGTHS_BYTES) {
      receive();
    }
    byte[] lines = new byte[buffer.getInt()];
    byte[] answer = new byte[buffer.getInt()];
    take(lines);
    take(answer);
    return Lines.reply(new String(lines, StandardCharsets.UTF_8), answer);
  }

  void close() {
    try {
      channel.close();
    } catch (IOException e) {
      // Nothing is lost: the caller has the response, or an error.
    }
  }

  private void send(byte[] head, byte[] body) throws IOException {
    buffer.clear();
    buffer.putInt(head.length).putInt(body.length);
    put(head);
    put(body);
    flush();
  }

  private void put(byte[] bytes) throws IOException {
    int done = 0;
    while (done < bytes.length) {
      if (!buffer.hasRemaining()) {
        flush();
      }
      int next = Math.min(bytes.length - done, buffer.remaining());
      buffer.put(bytes, done, next);
      done += next;
    }
  }

  private void flush() throws IOException {
    buffer.flip();
    while (buffer.hasRemaining()) {
      channel.write(buffer);
    }
    buffer.clear();
  }

  private void take(byte[] bytes) throws IOException {
    int done = 0;
    while (done < bytes.length) {
      if (!buffer.hasRemaining()) {
        receive();
      }
      int next = Math.min(bytes.length - done, buffer.remaining());
      buffer.get(bytes, done, next);
      done += next;
    }
  }

  private void receive() throws IOException {
    buffer.compact();
    if (channel.read(buffer) < 0) {
      throw new EOFException("the connection was closed");
    }
    buffer.flip();
  }
}
