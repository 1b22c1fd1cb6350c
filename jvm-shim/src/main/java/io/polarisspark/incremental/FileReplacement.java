package io.polarisspark.incremental;

import static org.apache.spark.sql.functions.expr;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFile;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.MetadataColumns;
import org.apache.iceberg.OverwriteFiles;
import org.apache.iceberg.RowLevelOperationMode;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableProperties;
import org.apache.iceberg.exceptions.CleanableFailure;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.spark.FileRewriteCoordinator;
import org.apache.iceberg.spark.ScanTaskSetManager;
import org.apache.iceberg.spark.source.SparkRewriteTable;
import org.apache.iceberg.spark.source.SparkTable;
import org.apache.iceberg.util.ContentFileUtil;
import org.apache.iceberg.util.DataFileSet;
import org.apache.iceberg.util.DeleteFileSet;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.execution.CommandExecutionMode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.Option;
import scala.collection.immutable.Map$;

/**
 * Deletes and inserts rows of a table in one commit, which replaces the data files with deleted rows.
 *
 * <p>MERGE writes the same files. But it joins the deleted rows with all others in two shuffles, and runs several more
 * jobs to find the files.
 */
final class FileReplacement {
  /** Metadata column: path of the data file that has a row. */
  static final String FILE = MetadataColumns.FILE_PATH.name();

  private final SparkSession spark;
  private final DataSourceV2Relation relation;
  private final Table table;
  private final long snapshot;

  /**
   * @param relation reads the table as of the snapshot whose rows are deleted
   */
  FileReplacement(SparkSession spark, DataSourceV2Relation relation) {
    SparkTable read = (SparkTable) relation.table();
    this.spark = spark;
    this.relation = relation;
    this.table = read.table();
    this.snapshot = read.snapshotId();
  }

  /** Whether MERGE into the table replaces data files, too. */
  boolean isUsual() {
    String mode =
        table
            .properties()
            .getOrDefault(TableProperties.MERGE_MODE, TableProperties.MERGE_MODE_DEFAULT);
    return RowLevelOperationMode.fromName(mode) == RowLevelOperationMode.COPY_ON_WRITE;
  }

  /**
   * Returns the paths of the data files with rows to delete.
   *
   * @param deletes has a row for each row to delete
   * @param condition in SQL: whether the stored row t is the row s to delete
   */
  Set<String> files(Dataset<Row> deletes, String condition) {
    Set<String> paths = new HashSet<>();
    Plans.rows(spark, relation)
        .selectExpr("*", FILE)
        .alias("t")
        .join(deletes.alias("s"), expr(condition), "left_semi")
        .select("t." + FILE)
        .distinct()
        .collectAsList()
        .forEach(row -> paths.add(row.getString(0)));
    return paths;
  }

  /**
   * Writes the change.
   *
   * @param paths paths of the data files with rows to delete
   * @param deletes has a row for each row to delete
   * @param condition in SQL: whether the stored row t is the row s to delete
   * @param summary entries for the summary of the snapshot
   * @throws org.apache.iceberg.exceptions.ValidationException another commit came first
   */
  void commit(
      Set<String> paths,
      Dataset<Row> deletes,
      String condition,
      Dataset<Row> inserts,
      Map<String, String> summary) {
    String group = "polaris-" + UUID.randomUUID();
    List<FileScanTask> tasks =
        TableChanges.tasks(table.newScan().useSnapshot(snapshot)).stream()
            .filter(task -> paths.contains(task.file().location()))
            .toList();
    ScanTaskSetManager.get().stageTasks(table, group, tasks);
    try {
      DataSourceV2Relation staged =
          DataSourceV2Relation.create(
              new SparkRewriteTable(table, group),
              relation.catalog(), // has the functions by which Spark partitions rows, such as bucket
              Option.<Identifier>empty());
      Dataset<Row> rows =
          Plans.rows(spark, staged)
              .alias("t")
              .join(deletes.alias("s"), expr(condition), "left_anti")
              .unionByName(inserts, true);
      AppendData write =
          AppendData.byName(staged, rows.logicalPlan(), Map$.MODULE$.<String, String>empty());
      spark
          .sessionState()
          .executePlan(write, CommandExecutionMode.ALL())
          .assertCommandExecuted();
      replace(tasks, FileRewriteCoordinator.get().fetchNewFiles(table, group), summary);
    } finally {
      FileRewriteCoordinator.get().clearRewrite(table, group);
      ScanTaskSetManager.get().removeTasks(table, group);
    }
  }

  private void replace(List<FileScanTask> tasks, Set<DataFile> added, Map<String, String> summary) {
    DataFileSet replaced = DataFileSet.create();
    DeleteFileSet vectors = DeleteFileSet.create();
    for (FileScanTask task : tasks) {
      replaced.add(task.file());
      for (DeleteFile file : task.deletes()) {
        if (ContentFileUtil.isDV(file)) {
          vectors.add(file);
        }
      }
    }
    OverwriteFiles commit =
        table
            .newOverwrite()
            .deleteFiles(replaced, vectors)
            .validateFromSnapshot(snapshot)
            .conflictDetectionFilter(Expressions.alwaysTrue())
            .validateNoConflictingData()
            .validateNoConflictingDeletes();
    added.forEach(commit::addFile);
    commit.set("spark.app.id", spark.sparkContext().applicationId());
    summary.forEach(commit::set);
    try {
      commit.commit();
    } catch (RuntimeException failure) {
      if (failure instanceof CleanableFailure) { // nothing was committed
        added.forEach(file -> table.io().deleteFile(file.location()));
      }
      throw failure;
    }
  }
}
