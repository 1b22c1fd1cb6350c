package io.polarisspark;

import java.util.Collection;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;

/**
 * The source columns on which a column, a condition or the rows of a query depend, and how. Immutable.
 *
 * <p>The kinds are those of OpenLineage's facet for column lineage.
 */
record Dependencies(Map<SourceColumn, Set<Kind>> kinds) {
  static final Dependencies NONE = new Dependencies(Map.of());

  /** How a column depends on a source column. The first three are direct: the value is computed from the source's. */
  enum Kind {
    IDENTITY,
    TRANSFORMATION,
    AGGREGATION,
    JOIN,
    GROUP_BY,
    FILTER,
    SORT,
    WINDOW,
    CONDITIONAL;

    boolean isDirect() {
      return compareTo(AGGREGATION) <= 0;
    }
  }

  /**
   * A table, or another relation that is a leaf of a plan.
   *
   * @param catalog name of the catalog in Spark; empty if it is in none
   * @param uuid empty if it is not a table of Iceberg
   */
  record Source(String catalog, List<String> name, String uuid) {}

  record SourceColumn(Source source, String name) {}

  static Dependencies identity(Source source, String column) {
    return new Dependencies(
        Map.of(new SourceColumn(source, column), EnumSet.of(Kind.IDENTITY)));
  }

  /** Returns the source columns with this kind of dependence. */
  List<SourceColumn> of(Kind kind) {
    return kinds.entrySet().stream()
        .filter(entry -> entry.getValue().contains(kind))
        .map(Map.Entry::getKey)
        .toList();
  }

  static Dependencies sum(Collection<Dependencies> terms) {
    Map<SourceColumn, Set<Kind>> all = new LinkedHashMap<>();
    for (Dependencies term : terms) {
      term.kinds.forEach((column, more) -> all.merge(column, more, Dependencies::union));
    }
    return new Dependencies(all);
  }

  Dependencies plus(Dependencies other) {
    return other.kinds.isEmpty() ? this : sum(List.of(this, other));
  }

  /** Returns the dependencies of a value that is computed from a value with these dependencies. */
  Dependencies in(Kind computation) {
    return changed(
        kind -> kind.isDirect() && kind.compareTo(computation) < 0 ? computation : kind);
  }

  /** Returns the dependencies of rows that are chosen, sorted or grouped by a value with these dependencies. */
  Dependencies by(Kind use) {
    return changed(kind -> use);
  }

  private Dependencies changed(Function<Kind, Kind> function) {
    Map<SourceColumn, Set<Kind>> all = new LinkedHashMap<>();
    kinds.forEach(
        (column, before) -> {
          Set<Kind> after = EnumSet.noneOf(Kind.class);
          before.forEach(kind -> after.add(function.apply(kind)));
          all.put(column, after);
        });
    return new Dependencies(all);
  }

  private static Set<Kind> union(Set<Kind> one, Set<Kind> other) {
    Set<Kind> all = EnumSet.copyOf(one);
    all.addAll(other);
    return all;
  }
}
