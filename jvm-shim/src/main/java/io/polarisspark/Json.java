package io.polarisspark;

import com.fasterxml.jackson.annotation.JsonAutoDetect;
import com.fasterxml.jackson.annotation.PropertyAccessor;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotParser;
import org.apache.iceberg.rest.ParserContext;
import org.apache.iceberg.rest.RESTSerializers;

/** Reads and writes JSON: small maps, and the messages of Iceberg's REST protocol. */
public final class Json {
  private static final TypeReference<Map<String, String>> STRINGS = new TypeReference<>() {};
  private static final ObjectMapper MAPPER = protocolMapper();

  private Json() {}

  /** Returns a list or map as JSON. It may contain texts, numbers, lists and maps. */
  public static String write(Object values) {
    try {
      return MAPPER.writeValueAsString(values);
    } catch (JsonProcessingException e) {
      throw new UncheckedIOException(e);
    }
  }

  public static Map<String, String> readStrings(String text) {
    return read(text, STRINGS);
  }

  public static <T> T read(String text, TypeReference<T> type) {
    try {
      return MAPPER.readValue(text, type);
    } catch (JsonProcessingException e) {
      throw new UncheckedIOException(e);
    }
  }

  static JsonNode readTree(byte[] text) {
    try {
      return MAPPER.readTree(text);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  static <T> T readMessage(byte[] text, Class<T> type, ParserContext context) {
    ObjectReader reader = MAPPER.readerFor(type);
    if (context != null && !context.isEmpty()) {
      reader = reader.with(context.toInjectableValues());
    }
    try {
      return reader.readValue(text);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /**
   * Reads the changes of a table's snapshots. Iceberg parses a snapshot only from text, so this method passes each
   * snapshot's part of the text to Iceberg's parser.
   */
  static SnapshotChanges readSnapshots(byte[] text) {
    boolean complete = true;
    Set<Long> removed = new HashSet<>();
    List<Snapshot> added = new ArrayList<>();
    try (JsonParser parser = MAPPER.getFactory().createParser(text)) {
      parser.nextToken();
      while (parser.nextToken() == JsonToken.FIELD_NAME) {
        String field = parser.currentName();
        parser.nextToken();
        switch (field) {
          case "since" -> complete = false;
          case "removed" -> {
            while (parser.nextToken() != JsonToken.END_ARRAY) {
              removed.add(parser.getLongValue());
            }
          }
          case "snapshots" -> {
            while (parser.nextToken() != JsonToken.END_ARRAY) {
              added.add(SnapshotParser.fromJson(skippedObject(parser, text)));
            }
          }
          default -> parser.skipChildren();
        }
      }
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    return new SnapshotChanges(complete, removed, added);
  }

  private static String skippedObject(JsonParser parser, byte[] text) throws IOException {
    int start = (int) parser.currentTokenLocation().getByteOffset();
    parser.skipChildren();
    int end = (int) parser.currentLocation().getByteOffset();
    return new String(text, start, end - start, StandardCharsets.UTF_8);
  }

  /**
   * Returns a mapper for the messages of the protocol. It reads messages without a parser in Iceberg by their fields,
   * whose names are in kebab case as in the specification.
   */
  private static ObjectMapper protocolMapper() {
    ObjectMapper mapper = new ObjectMapper();
    mapper.setVisibility(PropertyAccessor.FIELD, JsonAutoDetect.Visibility.ANY);
    mapper.setPropertyNamingStrategy(PropertyNamingStrategies.KEBAB_CASE);
    mapper.disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES);
    RESTSerializers.registerAll(mapper);
    return mapper;
  }
}
