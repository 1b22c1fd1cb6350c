package io.polarisspark;

import java.util.Iterator;
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
 * Iceberg's procedure {@code remove_orphan_files}, which knows one branch of the catalog only. It is refused for a table
 * that other branches or tags have, too, except as a dry run.
 */
record OrphanRemoval(UnboundProcedure icebergs, TableCatalog catalog, Procedures procedures)
    implements UnboundProcedure {
  static final String NAME = "remove_orphan_files";

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
      if (input.isNullAt(dryRun) || !input.getBoolean(dryRun)) {
        requireUnshared(input.getString(position("table")));
      }
      return icebergs.call(input);
    }

    private void requireUnshared(String table) {
      Identifier identifier;
      try {
        identifier = Spark3Util.catalogAndIdentifier(SparkSession.active(), table, catalog).identifier();
      } catch (ParseException unreadable) {
        return; // Iceberg reports it
      }
      if (identifier.namespace().length > 0 && !(identifier instanceof PathIdentifier)) {
        procedures.allowOrphanRemoval(identifier);
      }
    }

    private int position(String name) {
      ProcedureParameter[] all = parameters();
      for (int i = 0; i < all.length; i++) {
        if (all[i].name().equals(name)) {
          return i;
        }
      }
      throw new IllegalStateException("Iceberg's procedure " + name() + " has no parameter " + name);
    }
  }
}
