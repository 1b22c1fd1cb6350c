package io.polarisspark;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.MetadataUpdate;
import org.apache.iceberg.MetadataUpdateParser;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.SortOrder;
import org.apache.iceberg.SortOrderParser;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.UpdateRequirement;
import org.apache.iceberg.UpdateRequirementParser;
import org.apache.iceberg.view.ViewMetadata;
import org.apache.iceberg.view.ViewMetadataParser;

/**
 * Commits requests to tables and views, one at a time, with Iceberg's classes, as {@code CatalogHandlers} does.
 *
 * <p>Reads lines of fields separated by tabs; for each {@code create}, {@code register} and {@code commit}, writes one
 * line: {@code ok} and the new metadata, or {@code error}, the exception's class and its message. A commit applies to
 * the result of the previous commit. Times and UUIDs, which Iceberg would choose, come from the requests, so that both
 * sides can be compared exactly.
 */
public final class MetadataDriver {
  private final PrintStream out;
  private final List<UpdateRequirement> requirements = new ArrayList<>();
  private final List<MetadataUpdate> updates = new ArrayList<>();
  private final Map<String, String> properties = new HashMap<>();
  private RuntimeException unparseable;
  private boolean creates;
  private boolean isView;
  private long now;
  private String uuid;
  private TableMetadata table;
  private ViewMetadata view;

  private MetadataDriver(PrintStream out) {
    this.out = out;
  }

  public static void main(String[] args) throws IOException {
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    MetadataDriver driver = new MetadataDriver(out);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      driver.obey(line.split("\t", -1));
    }
    out.flush();
  }

  private void obey(String[] fields) {
    switch (fields[0]) {
      case "new" -> {
        isView = fields[1].equals("view");
        table = null;
        view = null;
      }
      case "now" -> now = Long.parseLong(fields[1]);
      case "uuid" -> uuid = fields[1];
      case "property" -> properties.put(fields[1], fields[2]);
      case "require" -> parse(() -> addRequirement(fields[1]));
      case "update" -> parse(() -> updates.add(MetadataUpdateParser.fromJson(fields[1])));
      case "create" -> answer(() -> create(fields[1], fields[2], fields[3], fields[4], fields[5]));
      case "register" -> answer(() -> register(fields[1], fields[2]));
      case "commit" -> answer(() -> isView ? commitView(fields[1]) : commitTable(fields[1]));
      case "flush" -> out.flush();
      default -> throw new IllegalStateException("unknown line: " + fields[0]);
    }
  }

  private void addRequirement(String json) {
    UpdateRequirement requirement = UpdateRequirementParser.fromJson(json);
    creates |= requirement instanceof UpdateRequirement.AssertTableDoesNotExist;
    requirements.add(requirement);
  }

  private void parse(Runnable parsing) {
    try {
      parsing.run();
    } catch (RuntimeException e) {
      unparseable = unparseable == null ? e : unparseable;
    }
  }

  private interface Request {
    String run() throws ReflectiveOperationException;
  }

  private void answer(Request request) {
    try {
      if (unparseable != null) {
        throw unparseable;
      }
      out.print("ok\t" + request.run() + "\n");
    } catch (RuntimeException e) {
      String message = String.valueOf(e.getMessage()).replace('\n', ' ').replace('\t', ' ');
      out.print("error\t" + e.getClass().getSimpleName() + "\t" + message + "\n");
    } catch (ReflectiveOperationException e) {
      throw new IllegalStateException(e);
    } finally {
      requirements.clear();
      updates.clear();
      properties.clear();
      unparseable = null;
      creates = false;
    }
  }

  private String create(String schema, String spec, String order, String root, String location) {
    Schema columns = SchemaParser.fromJson(schema);
    PartitionSpec parts =
        spec.isEmpty() ? PartitionSpec.unpartitioned() : PartitionSpecParser.fromJson(columns, spec);
    SortOrder sorted = order.isEmpty() ? SortOrder.unsorted() : SortOrderParser.fromJson(columns, order);
    TableMetadata created = TableMetadata.newTableMetadata(columns, parts, sorted, root, properties);
    String json =
        TableMetadataParser.toJson(created)
            .replace(created.uuid(), uuid)
            .replace("\"last-updated-ms\":" + created.lastUpdatedMillis(), "\"last-updated-ms\":" + now);
    return kept(location, json);
  }

  private String register(String metadata, String location) {
    if (isView) {
      view = ViewMetadataParser.fromJson(location, metadata);
      return ViewMetadataParser.toJson(view);
    }
    TableMetadata found = TableMetadataParser.fromJson(location, metadata);
    return kept(location, TableMetadataParser.toJson(found));
  }

  private String commitTable(String location) throws ReflectiveOperationException {
    boolean another = requirements.stream().anyMatch(one -> !(one instanceof UpdateRequirement.AssertTableDoesNotExist));
    if (creates && another) {
      throw new IllegalArgumentException("Invalid create requirements: " + requirements);
    }
    requirements.forEach(requirement -> requirement.validate(table));
    TableMetadata.Builder builder = creates || table == null ? fromEmpty() : TableMetadata.buildFrom(table);
    set(builder, "lastUpdatedMillis", now);
    if (table == null) {
      set(builder, "uuid", uuid);
    }
    updates.forEach(update -> update.applyTo(builder));
    TableMetadata updated = builder.build();
    return updated == table ? TableMetadataParser.toJson(table) : kept(location, TableMetadataParser.toJson(updated));
  }

  private TableMetadata.Builder fromEmpty() {
    return updates.stream()
        .filter(MetadataUpdate.UpgradeFormatVersion.class::isInstance)
        .map(update -> ((MetadataUpdate.UpgradeFormatVersion) update).formatVersion())
        .findFirst()
        .map(TableMetadata::buildFromEmpty)
        .orElseGet(TableMetadata::buildFromEmpty);
  }

  private String kept(String location, String json) {
    table = TableMetadataParser.fromJson(location, json);
    return json;
  }

  private String commitView(String location) {
    requirements.forEach(requirement -> requirement.validate(view));
    ViewMetadata.Builder builder = view == null ? ViewMetadata.builder() : ViewMetadata.buildFrom(view);
    long started = System.currentTimeMillis();
    updates.forEach(update -> update.applyTo(builder));
    ViewMetadata updated = builder.build();
    if (view != null && updated.changes().isEmpty()) {
      return ViewMetadataParser.toJson(view);
    }
    String json = ViewMetadataParser.toJson(updated);
    for (var entry : updated.history()) {
      if (entry.timestampMillis() >= started) {
        String time = "\"timestamp-ms\":";
        json = json.replace(time + entry.timestampMillis(), time + now);
      }
    }
    view = ViewMetadataParser.fromJson(location, json);
    return json;
  }

  private static void set(Object object, String name, Object value) throws ReflectiveOperationException {
    Field field = object.getClass().getDeclaredField(name);
    field.setAccessible(true);
    field.set(object, value);
  }
}
