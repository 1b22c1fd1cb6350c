package io.polarisspark;

import java.util.Arrays;
import java.util.Iterator;
import java.util.Set;
import org.apache.iceberg.spark.PathIdentifier;
import org.apache.iceberg.spark.Spark3Util;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.StructType;

/**
 * A procedure of Iceberg that deletes files of a table. It knows one branch of the catalog only, so it is refused if
 * other branches or tags may need the files. A dry run is allowed.
 */
record DeletingProcedure(UnboundProcedure icebergs, TableCatalog catalog, Procedures procedures)
    implements UnboundProcedure {
  private static final Set<String> NAMES = Set.of("expire_snapshots", "remove_orphan_files");

  /** Returns a procedure of Iceberg, with the check if it deletes files of tables. */
  static UnboundProcedure of(UnboundProcedure icebergs, TableCatalog catalog, Procedures procedures) {
    return NAMES.contains(icebergs.name())
        ? new DeletingProcedure(icebergs, catalog, procedures)
        : icebergs;
  }

  @Override
  public String name() {
    return icebergs.name();
  }

  @Override
  public String description() {
    return icebergs.description();
  }

  @Override
  public BoundProcedure bind(StructType inputType) {
    return new Bound(icebergs.bind(inputType), catalog, procedures);
  }

  private record Bound(BoundProcedure icebergs, TableCatalog catalog, Procedures procedures)
      implements BoundProcedure {
    @Override
    public String name() {
      return icebergs.name();
    }

    @Override
    public String description() {
      return icebergs.description();
    }

    @Override
    public ProcedureParameter[] parameters() {
      return icebergs.parameters();
    }

    @Override
    public boolean isDeterministic() {
      return icebergs.isDeterministic();
    }

    @Override
    public Iterator<Scan> call(InternalRow input) {
      int dryRun = position("dry_run");
      int table = position("table");
      boolean isDry = dryRun >= 0 && !input.isNullAt(dryRun) && input.getBoolean(dryRun);
      if (!isDry && !input.isNullAt(table)) {
        checkDeletion(input.getString(table));
      }
      return icebergs.call(input);
    }

    private void checkDeletion(String table) {
      Identifier identifier;
      try {
        identifier = Spark3Util.catalogAndIdentifier(SparkSession.active(), table, catalog).identifier();
      } catch (ParseException unreadable) {
        return; // Iceberg reports it
      }
      String[] namespace = identifier.namespace();
      if (namespace.length == 0 || identifier instanceof PathIdentifier) {
        return;
      }
      boolean exists = procedures.checkDeletion(identifier);
      if (!exists && namespace.length > 1) { // such as t.branch_main, which Iceberg loads as t
        int last = namespace.length - 1;
        procedures.checkDeletion(Identifier.of(Arrays.copyOf(namespace, last), namespace[last]));
      }
    }

    /** Returns the position of a parameter, or -1 if the procedure does not have it. */
    private int position(String name) {
      ProcedureParameter[] all = parameters();
      for (int i = 0; i < all.length; i++) {
        if (all[i].name().equals(name)) {
          return i;
        }
      }
      return -1;
    }
  }
}
