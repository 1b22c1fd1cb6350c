package io.polarisspark.incremental;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;
import org.apache.iceberg.ContentFile;
import org.apache.iceberg.DataOperations;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.spark.ScanTaskSetManager;
import org.apache.iceberg.spark.TimeTravel;
import org.apache.iceberg.spark.source.SparkRewriteTable;
import org.apache.iceberg.spark.source.SparkTable;
import org.apache.spark.sql.catalyst.analysis.AsOfVersion;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * The data files that differ between two snapshots of a table: those with added or other rows in the
 * later snapshot, and those whose rows of the earlier snapshot are no longer there as they were.
 *
 * <p>A file is in both lists if its rows differ because of delete files. The rows of both lists that
 * are equal cancel each other; so the difference is exact for every kind of write.
 */
final class TableChanges implements AutoCloseable {
  private final Table table;

  /** Id of the earlier snapshot; null if the table had none. */
  private final Long since;

  private final List<FileScanTask> added;
  private final List<FileScanTask> removed;

  /** Amounts of the sets of tasks that were staged, by the table that reads them. */
  private final Map<SparkRewriteTable, Amount> staged = new IdentityHashMap<>();

  /** Names of the sets of tasks that were staged. */
  private final List<String> names = new ArrayList<>();

  private TableChanges(
      Table table, Long since, List<FileScanTask> added, List<FileScanTask> removed) {
    this.table = table;
    this.since = since;
    this.added = added;
    this.removed = removed;
  }

  /** Finds the changes from the snapshot {@code since} (null for none) to the snapshot {@code id}. */
  static TableChanges between(Table table, Long since, long id) {
    if (since == null) {
      return new TableChanges(table, null, tasks(table.newScan().useSnapshot(id)), List.of());
    }
    if (onlyAppended(table, since, id)) {
      List<FileScanTask> added =
          tasks(table.newIncrementalAppendScan().fromSnapshotExclusive(since).toSnapshot(id));
      return new TableChanges(table, since, added, List.of());
    }
    Map<String, FileScanTask> before = byPath(tasks(table.newScan().useSnapshot(since)));
    Map<String, FileScanTask> after = byPath(tasks(table.newScan().useSnapshot(id)));
    return new TableChanges(table, since, missing(after, before), missing(before, after));
  }

  boolean isEmpty() {
    return added.isEmpty() && removed.isEmpty();
  }

  /** Whether rows can have been added. */
  boolean adds() {
    return !added.isEmpty();
  }

  /** Whether rows can have been removed. */
  boolean removes() {
    return !removed.isEmpty();
  }

  /** Returns the rows of the changed files in the later snapshot. */
  LogicalPlan added(DataSourceV2Relation relation) {
    return scan(relation, added);
  }

  /** Returns the rows of the changed files in the earlier snapshot. */
  LogicalPlan removed(DataSourceV2Relation relation) {
    return scan(relation, removed);
  }

  Amount amount() {
    return amount(added).plus(amount(removed));
  }

  /** Returns the amount that a table from {@link #added} or {@link #removed} reads; null for others. */
  Amount amount(SparkRewriteTable scanned) {
    return staged.get(scanned);
  }

  private static Amount amount(List<FileScanTask> tasks) {
    return tasks.stream()
        .map(FileScanTask::file)
        .map(file -> new Amount(1, file.fileSizeInBytes(), file.recordCount()))
        .reduce(Amount.NONE, Amount::plus);
  }

  /** Returns a relation that reads the earlier snapshot. */
  LogicalPlan before(DataSourceV2Relation relation) {
    if (since == null) {
      return Plans.empty(Plans.output(relation));
    }
    String version = Long.toString(since);
    return new DataSourceV2Relation(
        SparkTable.create(table, TimeTravel.version(version)),
        relation.output(),
        Option.empty(),
        Option.empty(),
        relation.options(),
        Option.apply(new AsOfVersion(version)));
  }

  @Override
  public void close() {
    names.forEach(name -> ScanTaskSetManager.get().removeTasks(table, name));
    names.clear();
    staged.clear();
  }

  private LogicalPlan scan(DataSourceV2Relation relation, List<FileScanTask> tasks) {
    String name = "polaris-" + UUID.randomUUID();
    ScanTaskSetManager.get().stageTasks(table, name, tasks);
    names.add(name);
    SparkRewriteTable scanned = new SparkRewriteTable(table, name);
    staged.put(scanned, amount(tasks));
    return new DataSourceV2Relation(
        scanned,
        relation.output(),
        Option.empty(),
        Option.empty(),
        CaseInsensitiveStringMap.empty(),
        Option.empty());
  }

  /** Whether all snapshots after {@code since}, up to {@code id}, are appends and compactions. */
  private static boolean onlyAppended(Table table, long since, long id) {
    Long at = id;
    while (at != null && at != since) {
      Snapshot snapshot = table.snapshot(at);
      if (snapshot == null
          || !Set.of(DataOperations.APPEND, DataOperations.REPLACE).contains(snapshot.operation())) {
        return false;
      }
      at = snapshot.parentId();
    }
    return at != null;
  }

  private static List<FileScanTask> tasks(org.apache.iceberg.Scan<?, FileScanTask, ?> scan) {
    List<FileScanTask> all = new ArrayList<>();
    try (CloseableIterable<FileScanTask> found = scan.planFiles()) {
      found.forEach(all::add);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return all;
  }

  private static Map<String, FileScanTask> byPath(List<FileScanTask> tasks) {
    Map<String, FileScanTask> all = new HashMap<>();
    tasks.forEach(task -> all.put(task.file().location(), task));
    return all;
  }

  /** Returns the tasks of {@code some} that {@code others} has not, or has with other delete files. */
  private static List<FileScanTask> missing(
      Map<String, FileScanTask> some, Map<String, FileScanTask> others) {
    List<FileScanTask> all = new ArrayList<>();
    some.forEach(
        (path, task) -> {
          FileScanTask other = others.get(path);
          if (other == null || !deletes(task).equals(deletes(other))) {
            all.add(task);
          }
        });
    return all;
  }

  private static Set<List<Object>> deletes(FileScanTask task) {
    return task.deletes().stream().map(TableChanges::identity).collect(Collectors.toSet());
  }

  /** Returns what identifies a delete file; several deletion vectors can be in one file. */
  private static List<Object> identity(DeleteFile file) {
    Long offset = file.contentOffset();
    return List.of(((ContentFile<?>) file).location(), offset == null ? -1L : offset);
  }
}
