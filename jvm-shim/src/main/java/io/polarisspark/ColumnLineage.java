package io.polarisspark;

import io.polarisspark.Dependencies.Kind;
import io.polarisspark.Dependencies.Source;
import io.polarisspark.Dependencies.SourceColumn;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.Table;
import org.apache.iceberg.spark.source.SparkTable;
import org.apache.iceberg.types.Types.NestedField;
import org.apache.iceberg.util.SnapshotUtil;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.CaseWhen;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionDef;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionId;
import org.apache.spark.sql.catalyst.expressions.CommonExpressionRef;
import org.apache.spark.sql.catalyst.expressions.Exists;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.If;
import org.apache.spark.sql.catalyst.expressions.ListQuery;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.OuterReference;
import org.apache.spark.sql.catalyst.expressions.OuterScopeReference;
import org.apache.spark.sql.catalyst.expressions.RankLike;
import org.apache.spark.sql.catalyst.expressions.ScalarSubquery;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.expressions.WindowExpression;
import org.apache.spark.sql.catalyst.expressions.With;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationDef;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.Distinct;
import org.apache.spark.sql.catalyst.plans.logical.Except;
import org.apache.spark.sql.catalyst.plans.logical.Expand;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.Intersect;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LateralJoin;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Offset;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.RebalancePartitions;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionOperation;
import org.apache.spark.sql.catalyst.plans.logical.ResolvedHint;
import org.apache.spark.sql.catalyst.plans.logical.Sample;
import org.apache.spark.sql.catalyst.plans.logical.SetOperation;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.UnionLoop;
import org.apache.spark.sql.catalyst.plans.logical.UnionLoopRef;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.IterableOnce;

/**
 * The columns of tables on which the columns and the rows of a query depend, as Spark's analyzed plan shows them.
 *
 * <p>Each operator maps the dependencies of its children's columns to those of its own. Joins, filters, groups and sort
 * orders decide about whole rows, so they are kept beside the columns.
 */
public final class ColumnLineage {
  private static final Logger LOG = LoggerFactory.getLogger(ColumnLineage.class);

  /** Operators that keep all columns. They keep all rows, or choose rows independently of the values. */
  private static final List<Class<?>> KEEPING_COLUMNS =
      List.of(
          SubqueryAlias.class,
          View.class,
          ResolvedHint.class,
          RepartitionOperation.class,
          RebalancePartitions.class,
          GlobalLimit.class,
          LocalLimit.class,
          Offset.class,
          Sample.class);

  /** Leaves that read nothing. */
  private static final List<Class<?>> WITHOUT_SOURCE =
      List.of(LocalRelation.class, OneRowRelation.class, Range.class);

  private final Set<Source> sources = new LinkedHashSet<>();
  private final Map<Long, Result> tableExpressions = new HashMap<>();
  private final Map<Long, Result> loops = new HashMap<>();
  private final Map<CommonExpressionId, Dependencies> commonExpressions = new HashMap<>();

  /** The dependencies of an operator's columns, and the dependencies that decide which rows it returns. */
  private record Rows(Map<ExprId, Dependencies> columns, Dependencies rows) {
    Rows with(Map<ExprId, Dependencies> more) {
      Map<ExprId, Dependencies> all = new HashMap<>(columns);
      all.putAll(more);
      return new Rows(all, rows);
    }

    Rows and(Dependencies more) {
      return new Rows(columns, rows.plus(more));
    }
  }

  /** The dependencies of a query: of its columns, by position, and of its rows. */
  private record Result(List<Dependencies> columns, Dependencies rows) {
    Result plus(Result other) {
      List<Dependencies> all = new ArrayList<>();
      for (int position = 0; position < columns.size(); position++) {
        all.add(columns.get(position).plus(other.columns.get(position)));
      }
      return new Result(all, rows.plus(other.rows));
    }
  }

  /** The columns that an expression can refer to, and those around the subquery that contains it. */
  private record Scope(Map<ExprId, Dependencies> columns, Scope outer) {
    Dependencies find(ExprId id) {
      for (Scope scope = this; scope != null; scope = scope.outer) {
        Dependencies found = scope.columns.get(id);
        if (found != null) {
          return found;
        }
      }
      throw new UnknownLineage("a column that no operator returns");
    }
  }

  /** The plan contains an operator or expression for which there is no rule. */
  private static final class UnknownLineage extends RuntimeException {
    private static final long serialVersionUID = 1;

    UnknownLineage(String what) {
      super(what);
    }
  }

  private ColumnLineage() {}

  /**
   * Returns the lineage of the first columns of a query, in JSON.
   *
   * <p>`sources` are the relations that the query reads, each with `catalog`, `name`, `uuid` and the `columns` on which
   * the result depends. `edges` are lists of [column of the query, source, column of the source], by kind of dependence
   * and counted from 0. The column of the query is null if all rows depend on the source column. Without `edges`, the
   * dependencies of the columns are not known.
   *
   * @param plan the analyzed plan
   * @param columns number of columns
   */
  public static String of(LogicalPlan plan, int columns) {
    ColumnLineage lineage = new ColumnLineage();
    try {
      Result found = lineage.result(plan, null);
      return lineage.json(found.columns.subList(0, columns), found.rows);
    } catch (UnknownLineage unknown) {
      LOG.info("The lineage of a query is known for tables only, because of {}", unknown.getMessage());
    } catch (RuntimeException | LinkageError error) { // the plan is from another version of Spark
      LOG.warn("The lineage of a query is known for tables only", error);
    }
    return lineage.json(null, null);
  }

  private String json(List<Dependencies> columns, Dependencies rows) {
    List<Source> order = List.copyOf(sources);
    List<Map<String, Integer>> used = new ArrayList<>();
    order.forEach(source -> used.add(new LinkedHashMap<>()));
    Map<String, List<List<Integer>>> edges = new LinkedHashMap<>();
    for (Kind kind : columns == null ? List.<Kind>of() : List.of(Kind.values())) {
      List<List<Integer>> found = new ArrayList<>();
      for (int position = 0; position <= columns.size(); position++) {
        boolean isColumn = position < columns.size();
        for (SourceColumn column : (isColumn ? columns.get(position) : rows).of(kind)) {
          int source = order.indexOf(column.source());
          Map<String, Integer> names = used.get(source);
          names.putIfAbsent(column.name(), names.size());
          found.add(
              Arrays.asList(isColumn ? position : null, source, names.get(column.name())));
        }
      }
      if (!found.isEmpty()) {
        edges.put(kind.name(), found);
      }
    }
    List<Map<String, Object>> described = new ArrayList<>();
    for (Source source : order) {
      described.add(
          Map.of(
              "catalog", source.catalog(),
              "name", source.name(),
              "uuid", source.uuid(),
              "columns", used.get(order.indexOf(source)).keySet()));
    }
    return Json.write(
        columns == null
            ? Map.of("sources", described)
            : Map.of("sources", described, "edges", edges));
  }

  private Result result(LogicalPlan plan, Scope outer) {
    Rows rows = rows(plan, outer);
    Scope scope = new Scope(rows.columns, null);
    return new Result(
        list(plan.output()).stream().map(column -> scope.find(column.exprId())).toList(),
        rows.rows);
  }

  private static Rows rows(Result result, LogicalPlan plan) {
    Map<ExprId, Dependencies> columns = new HashMap<>();
    List<Attribute> output = list(plan.output());
    for (int position = 0; position < output.size(); position++) {
      columns.put(output.get(position).exprId(), result.columns.get(position));
    }
    return new Rows(columns, result.rows);
  }

  private Rows rows(LogicalPlan plan, Scope outer) {
    if (plan instanceof WithCTE with) {
      for (CTERelationDef definition : list(with.cteDefs())) {
        tableExpressions.put(definition.id(), result(definition.child(), outer));
      }
      return rows(with.plan(), outer);
    } else if (plan instanceof CTERelationRef reference) {
      return rows(tableExpressions.get(reference.cteId()), plan);
    } else if (plan instanceof UnionLoopRef reference) {
      return rows(loops.get(reference.loopId()), plan);
    } else if (plan instanceof UnionLoop loop) {
      return recursive(loop, outer);
    } else if (plan instanceof LateralJoin join) {
      Rows left = rows(join.left(), outer);
      Scope beside = new Scope(left.columns, outer);
      return joined(left, rows(join.right().plan(), beside), list(join.condition()), outer);
    }
    List<LogicalPlan> children = list(plan.children());
    if (children.isEmpty()) {
      return leaf(plan);
    } else if (plan instanceof Join join) {
      return joined(
          rows(join.left(), outer), rows(join.right(), outer), list(join.condition()), outer);
    } else if (plan instanceof Union) {
      return rows(
          children.stream().map(child -> result(child, outer)).reduce(Result::plus).get(), plan);
    } else if (plan instanceof Intersect intersect) {
      return restricted(intersect, intersect.isAll(), outer);
    } else if (plan instanceof Except except) {
      return restricted(except, except.isAll(), outer);
    } else if (children.size() == 1) {
      return unary(plan, rows(children.get(0), outer), outer);
    }
    throw new UnknownLineage("the operator " + plan.nodeName());
  }

  private Rows unary(LogicalPlan plan, Rows child, Scope outer) {
    Scope scope = new Scope(child.columns, outer);
    if (KEEPING_COLUMNS.stream().anyMatch(kind -> kind.isInstance(plan))) {
      return child;
    } else if (plan instanceof Project project) {
      return child.with(named(list(project.projectList()), scope));
    } else if (plan instanceof Filter filter) {
      return child.and(of(filter.condition(), scope).by(Kind.FILTER));
    } else if (plan instanceof Sort sort) {
      return child.and(all(list(sort.order()), scope).by(Kind.SORT));
    } else if (plan instanceof Aggregate aggregate) {
      return child
          .with(named(list(aggregate.aggregateExpressions()), scope))
          .and(all(list(aggregate.groupingExpressions()), scope).by(Kind.GROUP_BY));
    } else if (plan instanceof Distinct) {
      return child.and(all(list(plan.output()), scope).by(Kind.GROUP_BY));
    } else if (plan instanceof Deduplicate deduplicate) {
      return child.and(all(list(deduplicate.keys()), scope).by(Kind.GROUP_BY));
    } else if (plan instanceof Window window) {
      return child.with(named(list(window.windowExpressions()), scope));
    } else if (plan instanceof Generate generate) {
      Dependencies generator = of((Expression) generate.generator(), scope);
      Map<ExprId, Dependencies> generated = new HashMap<>();
      list(generate.generatorOutput()).forEach(one -> generated.put(one.exprId(), generator));
      return child.with(generated).and(generator.by(Kind.JOIN));
    } else if (plan instanceof Expand expand) {
      return child.with(rows(expanded(expand, scope), plan).columns);
    }
    throw new UnknownLineage("the operator " + plan.nodeName());
  }

  private Rows joined(Rows left, Rows right, List<Expression> condition, Scope outer) {
    Rows both = left.with(right.columns).and(right.rows);
    return both.and(all(condition, new Scope(both.columns, outer)).by(Kind.JOIN));
  }

  /** INTERSECT or EXCEPT: the rows of the left side that are, or are not, on the right side. */
  private Rows restricted(SetOperation plan, boolean isAll, Scope outer) {
    Result left = result((LogicalPlan) plan.left(), outer);
    Result right = result((LogicalPlan) plan.right(), outer);
    Dependencies columns = Dependencies.sum(left.columns);
    Dependencies compared = columns.plus(Dependencies.sum(right.columns)).by(Kind.FILTER);
    Rows found = rows(left, plan).and(right.rows).and(compared);
    return isAll ? found : found.and(columns.by(Kind.GROUP_BY));
  }

  /** A recursive common table expression. Its columns depend on the columns of the previous step. */
  private Rows recursive(UnionLoop loop, Scope outer) {
    Result found = result(loop.anchor(), outer);
    Result before;
    do {
      before = found;
      loops.put(loop.id(), before);
      found = before.plus(result(loop.recursion(), outer));
    } while (!found.equals(before));
    return rows(found, loop);
  }

  private Result expanded(Expand expand, Scope scope) {
    Result all = null;
    for (scala.collection.immutable.Seq<Expression> projection : list(expand.projections())) {
      List<Dependencies> columns = list(projection).stream().map(one -> of(one, scope)).toList();
      Result one = new Result(columns, Dependencies.NONE);
      all = all == null ? one : all.plus(one);
    }
    return all;
  }

  private Rows leaf(LogicalPlan plan) {
    Map<ExprId, Dependencies> columns = new HashMap<>();
    if (WITHOUT_SOURCE.stream().anyMatch(kind -> kind.isInstance(plan))) {
      list(plan.output()).forEach(column -> columns.put(column.exprId(), Dependencies.NONE));
      return new Rows(columns, Dependencies.NONE);
    }
    Source source = source(plan);
    sources.add(source);
    for (Attribute column : list(plan.output())) {
      columns.put(column.exprId(), Dependencies.identity(source, nameNow(plan, column.name())));
    }
    return new Rows(columns, Dependencies.NONE);
  }

  private static Source source(LogicalPlan leaf) {
    if (leaf instanceof DataSourceV2Relation relation) {
      String uuid =
          relation.table() instanceof SparkTable table ? table.table().uuid().toString() : "";
      if (relation.identifier().isEmpty()) {
        return new Source("", List.of(relation.table().name()), uuid);
      }
      List<String> name = new ArrayList<>(List.of(relation.identifier().get().namespace()));
      name.add(relation.identifier().get().name());
      String catalog = relation.catalog().isEmpty() ? "" : relation.catalog().get().name();
      return new Source(catalog, name, uuid);
    }
    if (leaf instanceof LogicalRelation relation) {
      if (relation.catalogTable().isDefined()) {
        List<String> parts = list(relation.catalogTable().get().identifier().nameParts());
        return parts.size() < 3
            ? new Source("", parts, "")
            : new Source(parts.get(0), parts.subList(1, parts.size()), "");
      }
      if (relation.relation() instanceof HadoopFsRelation files) {
        return new Source("", List.of(list(files.location().rootPaths()).get(0).toString()), "");
      }
    }
    throw new UnknownLineage("the relation " + leaf.nodeName());
  }

  /**
   * Returns the current name of a column. The table is read as of a snapshot, with the column names of that snapshot.
   */
  private static String nameNow(LogicalPlan leaf, String column) {
    if (leaf instanceof DataSourceV2Relation relation
        && relation.table() instanceof SparkTable read
        && read.snapshotId() != null) {
      Table table = read.table();
      NestedField field = SnapshotUtil.schemaFor(table, read.snapshotId()).findField(column);
      String now = field == null ? null : table.schema().findColumnName(field.fieldId());
      return now == null ? column : now;
    }
    return column;
  }

  private Map<ExprId, Dependencies> named(List<NamedExpression> columns, Scope scope) {
    Map<ExprId, Dependencies> found = new HashMap<>();
    columns.forEach(column -> found.put(column.exprId(), of((Expression) column, scope)));
    return found;
  }

  private Dependencies all(Collection<? extends Expression> expressions, Scope scope) {
    return Dependencies.sum(expressions.stream().map(one -> of(one, scope)).toList());
  }

  private Dependencies of(Expression expression, Scope scope) {
    if (expression instanceof Attribute column) {
      return scope.find(column.exprId());
    } else if (expression instanceof OuterReference reference) {
      return of((Expression) reference.e(), scope.outer);
    } else if (expression instanceof OuterScopeReference reference) {
      return of((Expression) reference.e(), scope.outer);
    } else if (expression instanceof Alias alias) {
      return of(alias.child(), scope);
    } else if (expression instanceof SortOrder order) { // as in listagg
      return of(order.child(), scope).by(Kind.SORT);
    } else if (expression instanceof AggregateExpression aggregate) {
      return of((Expression) aggregate.aggregateFunction(), scope)
          .in(Kind.AGGREGATION)
          .plus(all(list(aggregate.filter()), scope).by(Kind.FILTER));
    } else if (expression instanceof WindowExpression window) {
      Expression function = window.windowFunction();
      Dependencies value =
          function instanceof RankLike ? Dependencies.NONE : of(function, scope);
      return value
          .in(Kind.TRANSFORMATION)
          .plus(all(list(window.windowSpec().children()), scope).by(Kind.WINDOW));
    } else if (expression instanceof If choice) {
      return all(List.of(choice.trueValue(), choice.falseValue()), scope)
          .in(Kind.TRANSFORMATION)
          .plus(of(choice.predicate(), scope).by(Kind.CONDITIONAL));
    } else if (expression instanceof CaseWhen choice) {
      return chosen(choice, scope);
    } else if (expression instanceof With with) {
      for (CommonExpressionDef definition : list(with.defs())) {
        commonExpressions.put(definition.id(), of(definition.child(), scope));
      }
      return of(with.child(), scope);
    } else if (expression instanceof CommonExpressionRef reference) {
      return commonExpressions.get(reference.id());
    } else if (expression instanceof SubqueryExpression subquery) {
      return subquery(subquery, scope);
    }
    return all(list(expression.children()), scope).in(Kind.TRANSFORMATION);
  }

  private Dependencies chosen(CaseWhen choice, Scope scope) {
    Dependencies values = all(list(choice.elseValue()), scope);
    Dependencies conditions = Dependencies.NONE;
    for (scala.Tuple2<Expression, Expression> branch : list(choice.branches())) {
      conditions = conditions.plus(of(branch._1(), scope));
      values = values.plus(of(branch._2(), scope));
    }
    return values.in(Kind.TRANSFORMATION).plus(conditions.by(Kind.CONDITIONAL));
  }

  private Dependencies subquery(SubqueryExpression subquery, Scope scope) {
    Result result = result((LogicalPlan) subquery.plan(), scope);
    int values;
    if (subquery instanceof ScalarSubquery) {
      values = 1;
    } else if (subquery instanceof ListQuery list) {
      values = list.numCols();
    } else if (subquery instanceof Exists) {
      values = 0;
    } else {
      throw new UnknownLineage("the subquery " + subquery.nodeName());
    }
    return Dependencies.sum(result.columns.subList(0, values)).plus(result.rows);
  }

  private static <T> List<T> list(IterableOnce<? extends T> items) {
    List<T> all = new ArrayList<>();
    items.iterator().foreach(all::add);
    return all;
  }
}
