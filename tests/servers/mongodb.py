"""mongo-java-server, a server that speaks MongoDB's wire protocol (it is not MongoDB's own `mongod`).

It has commands, filters, unique `_id`s and cursors, but no sessions, transactions and users. It keeps documents in
memory, and may change a document while it sends an answer that contains it. So here, it runs one command after the
other, and answers with copies. It writes each changing command to a log, which is flushed before the answer, and which
it replays at its next start. It reports that it is the primary of a replica set, so that clients behave as with one. It
is the only member, and ignores write and read concerns, which a single member always satisfies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polaris_spark.testing.server import ProcessServer
from tests.servers.installing import maven_jars

VERSION: Final = "1.47.0"

_POM: Final = f"""
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>mongodb</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>de.bwaldvogel</groupId><artifactId>mongo-java-server</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

# Its own versions end before those that PyMongo speaks.
_MAIN: Final = """
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.bson.BsonDecoder;
import de.bwaldvogel.mongo.wire.bson.BsonEncoder;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.embedded.EmbeddedChannel;
import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.util.List;
import java.util.Set;

public class Logged extends MemoryBackend {
  private static final Set<String> CHANGING =
      Set.of("insert", "update", "delete", "findAndModify", "create", "createIndexes", "drop", "dropDatabase");
  private final String address;
  private final FileChannel log;
  private final Object flushing = new Object();
  private volatile long written;
  private long flushed;

  public static void main(String[] options) throws Exception {
    MongoServer server = new MongoServer(new Logged(new File(options[1]), "127.0.0.1:" + options[0]));
    server.bind("127.0.0.1", Integer.parseInt(options[0]));
    Runtime.getRuntime().addShutdownHook(new Thread(server::shutdownNow));
    Thread.currentThread().join();
  }

  Logged(File file, String address) throws IOException {
    this.address = address;
    version(new MongoVersion() {
      public List<Integer> getVersionArray() { return List.of(4, 4, 0); }
      public int getWireVersion() { return 9; }
    });
    log = new RandomAccessFile(file, "rw").getChannel();
    ByteBuffer head = ByteBuffer.allocate(4);
    while (log.read(head.clear(), written) == 4) {
      int size = Integer.reverseBytes(head.getInt(0));
      ByteBuffer whole = ByteBuffer.allocate(size);
      if (size < 5 || log.read(whole, written) < size) {
        break;
      }
      Document command = BsonDecoder.decodeBson(Unpooled.wrappedBuffer(whole.flip()));
      try {
        run(new EmbeddedChannel(), command);
      } catch (RuntimeException refused) {
        // as it was refused the first time
      }
      written += size;
    }
    log.truncate(written);
  }

  @Override
  public Document handleMessage(MongoMessage message) {
    Document command = message.getDocument();
    if (!CHANGING.contains(command.keySet().iterator().next())) {
      synchronized (this) {
        return run(message.getChannel(), command).cloneDeeply();
      }
    }
    command.put("$db", message.getDatabaseName());
    ByteBuf record = Unpooled.buffer();
    BsonEncoder.encodeDocument(command, record);
    try {
      Document answer;
      long end;
      synchronized (this) {
        written += log.write(record.nioBuffer(), written);
        end = written;
        answer = run(message.getChannel(), command).cloneDeeply();
      }
      flush(end);
      return answer;
    } catch (IOException problem) {
      throw new UncheckedIOException(problem);
    }
  }

  @Override
  public Document handleCommand(Channel channel, String database, String command, Document query) {
    Document answer = super.handleCommand(channel, database, command, query);
    if (command.equalsIgnoreCase("isMaster")) {
      answer.append("setName", "alone").append("setVersion", 1).append("secondary", false);
      answer.append("hosts", List.of(address)).append("primary", address).append("me", address);
    }
    return answer;
  }

  private Document run(Channel channel, Document command) {
    return handleCommand(channel, (String) command.get("$db"), command.keySet().iterator().next(), command);
  }

  private void flush(long end) throws IOException {
    synchronized (flushing) {
      if (flushed < end) {
        long reached = written;
        log.force(false);
        flushed = reached;
      }
    }
  }
}
"""

# Its own sorts by random numbers drawn at each comparison, which Java's sort refuses of longer lists.
_SAMPLE: Final = """
package de.bwaldvogel.mongo.backend.aggregation.stage;

import de.bwaldvogel.mongo.bson.Document;
import java.util.Collections;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;

public class SampleStage implements AggregationStage {
  private final int size;

  public SampleStage(Object sample) {
    size = ((Number) ((Document) sample).get("size")).intValue();
  }

  @Override
  public String name() {
    return "$sample";
  }

  @Override
  public Stream<Document> apply(Stream<Document> stream) {
    List<Document> all = stream.collect(Collectors.toList());
    Collections.shuffle(all);
    return all.stream().limit(size);
  }
}
"""


class MongoJavaServer(ProcessServer):
    """A server that keeps a log of its changes in a file."""

    name = "mongo-java-server"
    durability = "a log of commands, flushed before each answer"
    hasty = "timeout=2s&connect_timeout=2s"

    def prepare(self) -> None:
        sources = {"Logged.java": _MAIN, "SampleStage.java": _SAMPLE}
        self._installed = maven_jars(f"mongo-java-server-{VERSION}-3", _POM, sources)

    def command(self) -> Sequence[str]:
        return [
            "java",
            "-Xmx1g",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{self._installed}/classes:{self._installed}/lib/*",
            "Logged",
            str(self.port),
            str(self.directory / "commands"),
        ]

    def uri(self, store: str, *, port: int | None = None) -> str:
        """Store URI of a database. A client that connects through a proxy must not look for the members of the replica
        set."""
        how = "replicaSet=alone" if port in (None, self.port) else "directConnection=true"
        return f"mongodb://127.0.0.1:{port or self.port}/{store}?{how}"
