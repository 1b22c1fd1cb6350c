package io.polarisspark;

import org.apache.iceberg.BaseTable;
import org.apache.iceberg.ManageSnapshots;
import org.apache.iceberg.ReplaceSortOrder;
import org.apache.iceberg.Table;
import org.apache.iceberg.Transaction;
import org.apache.iceberg.UpdatePartitionSpec;
import org.apache.iceberg.UpdateSchema;

/**
 * A table whose changes report errors of the user as {@link UserError}. Iceberg's statements, such as {@code ALTER TABLE
 * ... CREATE TAG}, change the loaded table without a call of the catalog, so the catalog cannot convert their errors.
 */
final class UserErrorTable extends BaseTable {
  private UserErrorTable(BaseTable table) {
    super(table.operations(), table.name(), table.reporter(), table.labels());
  }

  /** Returns a loaded table with converted errors; other kinds of tables, such as metadata tables, are unchanged. */
  static Table of(Table table) {
    return table.getClass() == BaseTable.class ? new UserErrorTable((BaseTable) table) : table;
  }

  @Override
  public UpdateSchema updateSchema() {
    return UserError.converting(UpdateSchema.class, super.updateSchema());
  }

  @Override
  public UpdatePartitionSpec updateSpec() {
    return UserError.converting(UpdatePartitionSpec.class, super.updateSpec());
  }

  @Override
  public ReplaceSortOrder replaceSortOrder() {
    return UserError.converting(ReplaceSortOrder.class, super.replaceSortOrder());
  }

  @Override
  public ManageSnapshots manageSnapshots() {
    return UserError.converting(ManageSnapshots.class, super.manageSnapshots());
  }

  @Override
  public Transaction newTransaction() {
    return UserError.converting(Transaction.class, super.newTransaction());
  }
}
