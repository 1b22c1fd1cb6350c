package io.polarisspark.incremental;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotSummary;
import org.apache.iceberg.spark.source.SparkRewriteTable;
import org.apache.iceberg.spark.source.SparkTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;

/** The tables that a plan reads, and what has changed in them since the last refresh. */
final class Sources implements AutoCloseable {
  /** Snapshot id of a table that had no snapshot. */
  static final long NO_SNAPSHOT = -1;

  private final Map<String, TableChanges> changes = new HashMap<>();

  /**
   * Finds what has changed.
   *
   * @param since ids of the snapshots that the last refresh read, by {@link #key}
   */
  Sources(LogicalPlan plan, Map<String, ? extends Number> since) {
    for (DataSourceV2Relation relation : relations(plan)) {
      String key = key(relation);
      Number last = since.get(key);
      if (last == null || changes.containsKey(key)) {
        continue;
      }
      long before = last.longValue();
      SparkTable table = (SparkTable) relation.table();
      if (before == table.snapshotId()) {
        continue;
      }
      TableChanges found =
          TableChanges.between(
              table.table(), before == NO_SNAPSHOT ? null : before, table.snapshotId());
      if (!found.isEmpty()) {
        changes.put(key, found);
      }
    }
  }

  /** Returns the UUID and the snapshot id that a leaf of a plan reads; an empty text if it reads no snapshot of a table. */
  static String key(LogicalPlan leaf) {
    return leaf instanceof DataSourceV2Relation relation
            && relation.table() instanceof SparkTable table
            && table.snapshotId() != null
        ? table.table().uuid() + "@" + table.snapshotId()
        : "";
  }

  /**
   * Returns all tables that a plan and its subqueries read. A table that is read several times is in the list several
   * times.
   */
  static List<DataSourceV2Relation> relations(LogicalPlan plan) {
    List<DataSourceV2Relation> found = new ArrayList<>();
    if (plan instanceof DataSourceV2Relation relation) {
      found.add(relation);
    }
    Plans.<LogicalPlan>list(plan.children()).forEach(child -> found.addAll(relations(child)));
    Plans.<LogicalPlan>list(plan.subqueries()).forEach(child -> found.addAll(relations(child)));
    return found;
  }

  boolean isChanged(LogicalPlan plan) {
    return relations(plan).stream().anyMatch(relation -> changes.containsKey(key(relation)));
  }

  /** Returns the amount of the changes of all tables. */
  Amount changed() {
    return changes.values().stream().map(TableChanges::amount).reduce(Amount.NONE, Amount::plus);
  }

  SignedRows delta(DataSourceV2Relation relation) {
    TableChanges found = changes.get(key(relation));
    List<SignedRows> terms = new ArrayList<>();
    if (found.adds()) {
      terms.add(SignedRows.of(found.added(relation), true));
    }
    if (found.removes()) {
      terms.add(SignedRows.of(found.removed(relation), false));
    }
    SignedRows all = SignedRows.sum(Plans.output(relation), terms);
    return found.adds() && found.removes() ? all.gross() : all;
  }

  /** Returns a plan that reads the state of the last refresh. */
  LogicalPlan before(LogicalPlan plan) {
    return Plans.withLeaves(
        plan,
        leaf -> {
          TableChanges found = changes.get(key(leaf));
          return found == null ? leaf : found.before((DataSourceV2Relation) leaf);
        });
  }

  /** Returns the amount that a plan reads, without regard to filters. */
  Amount amount(LogicalPlan plan) {
    Amount all = Amount.NONE;
    for (DataSourceV2Relation relation : relations(plan)) {
      if (relation.table() instanceof SparkTable table && table.snapshotId() != null) {
        all = all.plus(total(table.table().snapshot(table.snapshotId())));
      } else if (relation.table() instanceof SparkRewriteTable table) {
        all = all.plus(staged(table));
      }
    }
    return all;
  }

  private Amount staged(SparkRewriteTable table) {
    for (TableChanges one : changes.values()) {
      Amount found = one.amount(table);
      if (found != null) {
        return found;
      }
    }
    return Amount.NONE;
  }

  private static Amount total(Snapshot snapshot) {
    return new Amount(
        count(snapshot, SnapshotSummary.TOTAL_DATA_FILES_PROP),
        count(snapshot, SnapshotSummary.TOTAL_FILE_SIZE_PROP),
        count(snapshot, SnapshotSummary.TOTAL_RECORDS_PROP));
  }

  private static long count(Snapshot snapshot, String property) {
    return snapshot == null ? 0 : Long.parseLong(snapshot.summary().getOrDefault(property, "0"));
  }

  @Override
  public void close() {
    changes.values().forEach(TableChanges::close);
  }
}
