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
import org.apache.iceberg.FileContent;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.MetadataColumns;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.Table;
import org.apache.iceberg.data.BaseDeleteLoader;
import org.apache.iceberg.deletes.PositionDeleteIndex;
import org.apache.iceberg.encryption.EncryptingFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.spark.ScanTaskSetManager;
import org.apache.iceberg.spark.TimeTravel;
import org.apache.iceberg.spark.source.SparkRewriteTable;
import org.apache.iceberg.spark.source.SparkTable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.AsOfVersion;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;

/**
 * The data files that differ between two snapshots of a table: those with added or other rows in the
 * later snapshot, and those whose rows of the earlier snapshot are no longer there as they were.
 *
 * <p>If only positions were deleted in a file of both snapshots, the deleted rows are read. A file of
 * both snapshots with other delete files is in both lists: the rows that are equal cancel each other.
 * So the difference is exact for every kind of write.
 */
final class TableChanges implements AutoCloseable {
  /** Largest number of deleted positions that are read one by one. */
  private static final int MOST_POSITIONS = 500_000;

  private static final String FILE = MetadataColumns.FILE_PATH.name();
  private static final String POSITION = MetadataColumns.ROW_POSITION.name();

  private final Table table;

  /** Id of the earlier snapshot; null if the table had none. */
  private final Long since;

  private final List<FileScanTask> added;
  private final List<FileScanTask> removed;

  /** Files of both snapshots in which positions were deleted, as in the earlier snapshot. */
  private final List<FileScanTask> thinned;

  /** The deleted positions: path of the data file, and position in it. */
  private final List<InternalRow> positions;

  /** Amounts of the sets of tasks that were staged, by the table that reads them. */
  private final Map<SparkRewriteTable, Amount> staged = new IdentityHashMap<>();

  /** Names of the sets of tasks that were staged. */
  private final List<String> names = new ArrayList<>();

  private TableChanges(
      Table table, Long since, List<FileScanTask> added, List<FileScanTask> removed) {
    this(table, since, added, removed, List.of(), List.of());
  }

  private TableChanges(
      Table table,
      Long since,
      List<FileScanTask> added,
      List<FileScanTask> removed,
      List<FileScanTask> thinned,
      List<InternalRow> positions) {
    this.table = table;
    this.since = since;
    this.added = added;
    this.removed = removed;
    this.thinned = thinned;
    this.positions = positions;
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
    DifferingFiles files = new DifferingFiles(table, table.snapshot(since), table.snapshot(id));
    Map<String, FileScanTask> before = byPath(files.before());
    Map<String, FileScanTask> after = byPath(files.after());
    List<FileScanTask> thinned = new ArrayList<>();
    List<InternalRow> positions = new ArrayList<>();
    for (String path : List.copyOf(before.keySet())) {
      FileScanTask later = after.get(path);
      if (later == null) {
        continue;
      }
      List<Long> deleted = deletedPositions(table, before.get(path), later);
      if (deleted == null || positions.size() + deleted.size() > MOST_POSITIONS) {
        continue;
      }
      if (!deleted.isEmpty()) {
        thinned.add(before.get(path));
        deleted.forEach(position -> positions.add(row(path, position)));
      }
      before.remove(path);
      after.remove(path);
    }
    return new TableChanges(
        table, since, missing(after, before), missing(before, after), thinned, positions);
  }

  /**
   * Returns the positions that were deleted in a data file between two snapshots; null if the difference
   * is another one.
   */
  private static List<Long> deletedPositions(
      Table table, FileScanTask earlier, FileScanTask later) {
    if (deletes(earlier).equals(deletes(later))) {
      return List.of();
    }
    for (FileScanTask task : List.of(earlier, later)) {
      if (task.deletes().stream().anyMatch(one -> one.content() != FileContent.POSITION_DELETES)) {
        return null;
      }
    }
    PositionDeleteIndex before = positions(table, earlier);
    PositionDeleteIndex after = positions(table, later);
    List<Long> deleted = new ArrayList<>();
    after.forEach(
        position -> {
          if (!before.isDeleted(position)) {
            deleted.add(position);
          }
        });
    boolean restored = after.cardinality() - deleted.size() < before.cardinality();
    return restored ? null : deleted;
  }

  private static PositionDeleteIndex positions(Table table, FileScanTask task) {
    EncryptingFileIO files = files(table);
    return new BaseDeleteLoader(file -> files.newInputFile(file))
        .loadPositionDeletes(task.deletes(), task.file().location());
  }

  private static InternalRow row(String path, long position) {
    return new GenericInternalRow(new Object[] {UTF8String.fromString(path), position});
  }

  boolean isEmpty() {
    return added.isEmpty() && !removes();
  }

  /** Whether rows can have been added. */
  boolean adds() {
    return !added.isEmpty();
  }

  /** Whether rows can have been removed. */
  boolean removes() {
    return !removed.isEmpty() || !thinned.isEmpty();
  }

  /** Returns the rows of the changed files in the later snapshot. */
  LogicalPlan added(DataSourceV2Relation relation) {
    return scan(relation, added);
  }

  /** Returns the rows of the changed files in the earlier snapshot, and those at deleted positions. */
  LogicalPlan removed(DataSourceV2Relation relation) {
    List<LogicalPlan> plans = new ArrayList<>();
    if (!removed.isEmpty()) {
      plans.add(scan(relation, removed));
    }
    if (!thinned.isEmpty()) {
      plans.add(deleted(relation));
    }
    return Plans.union(plans);
  }

  private LogicalPlan deleted(DataSourceV2Relation relation) {
    DataSourceV2Relation all = scan(relation, thinned).withMetadataColumns();
    List<Attribute> place =
        List.of(
            new AttributeReference(
                FILE, DataTypes.StringType, false, Metadata.empty(), NamedExpression.newExprId(), Plans.seq()),
            new AttributeReference(
                POSITION, DataTypes.LongType, false, Metadata.empty(), NamedExpression.newExprId(), Plans.seq()));
    LogicalPlan deleted =
        new LocalRelation(Plans.seq(place), Plans.seq(positions), false, Option.empty());
    List<Expression> same = new ArrayList<>();
    for (Attribute column : place) {
      Attribute theirs =
          Plans.output(all).stream()
              .filter(one -> one.name().equals(column.name()))
              .findFirst()
              .orElseThrow();
      same.add(new EqualTo(theirs, column));
    }
    return Plans.project(
        Plans.output(relation),
        Plans.join(all, deleted, LeftSemi$.MODULE$, Plans.all(same)));
  }

  Amount amount() {
    return amount(added).plus(amount(removed)).plus(amount(thinned));
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

  private DataSourceV2Relation scan(DataSourceV2Relation relation, List<FileScanTask> tasks) {
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

  static EncryptingFileIO files(Table table) {
    return EncryptingFileIO.combine(table.io(), table.encryption());
  }

  static List<FileScanTask> tasks(org.apache.iceberg.Scan<?, FileScanTask, ?> scan) {
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
    for (FileScanTask task : tasks) {
      if (all.put(task.file().location(), task) != null) {
        throw new NotIncrementalException(
            "data file " + task.file().location() + " is in a table several times");
      }
    }
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
  static List<Object> identity(DeleteFile file) {
    Long offset = file.contentOffset();
    return List.of(((ContentFile<?>) file).location(), offset == null ? -1L : offset);
  }
}
