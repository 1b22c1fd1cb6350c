"""Faults in the rules of incremental refreshes, each with the shapes of `query_shapes` of which at least one shows it.

A fault replaces text of a Java source.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    file: str
    old: str
    new: str
    shapes: tuple[str, ...]


FAULTS = {
    "changed tables: deleted positions are not read": Fault(
        "TableChanges", "if (!deleted.isEmpty()) {", "if (false) {", ("projection",)
    ),
    "changed tables: removed files are not read": Fault(
        "TableChanges", "missing(before, after), thinned", "List.of(), thinned", ("sums of doubles", "union")
    ),
    "changed tables: manifests that stay are not searched for files with deleted rows": Fault(
        "DifferingFiles",
        "search(likely, named, found);",
        "found.addAll(named);",
        ("projection",),
    ),
    "filter: all changed rows pass": Fault(
        "DeltaRules",
        "if (plan instanceof Filter node) {\n      return linear(node, node.child());",
        "if (plan instanceof Filter node) {\n      return delta(node.child());",
        ("filter",),
    ),
    "inner join: the right side is read as it is now in both terms": Fault(
        "DeltaRules",
        "List.of(sources.before(node.left()), right.plan())",
        "List.of(node.left(), right.plan())",
        ("inner join", "self join"),
    ),
    "inner join: changes of the right side do not count": Fault(
        "DeltaRules",
        "terms.add(right.with(plan));",
        "if (terms.isEmpty()) {\n        terms.add(right.with(plan));\n      }",
        ("inner join", "self join"),
    ),
    "left join: rows of the left side are not looked at again": Fault(
        "DeltaRules",
        "terms.add(SignedRows.of(Plans.withChildren(node, List.of(left, right)), true));",
        "",
        ("left join", "exists"),
    ),
    "left join: the state before is not removed": Fault(
        "DeltaRules",
        "terms.add(SignedRows.of(Plans.withChildren(node, List.of(left, rightBefore)), false).gross());",
        "",
        ("left join", "exists"),
    ),
    "full join: only keys of the left side": Fault(
        "DeltaRules",
        "changed.add(changed(node.right(), equal.right));",
        "if (changed.isEmpty()) {\n        changed.add(changed(node.right(), equal.right));\n      }",
        ("full join",),
    ),
    "union: a change of the second query does not count": Fault(
        "DeltaRules",
        "      if (isChanged(child)) {\n        List<Attribute> theirs",
        "      if (isChanged(child) && terms.isEmpty()) {\n        List<Attribute> theirs",
        ("union all", "union"),
    ),
    "aggregates and windows below: groups are computed from the new rows only": Fault(
        "DeltaRules",
        "LogicalPlan before = sources.before(child);",
        "LogicalPlan before = child;",
        ("aggregate of an aggregate", "join of a window", "join of an aggregate"),
    ),
    "keys: null is not a key": Fault(
        "Keys",
        "return hasNull ? new Or(in, new IsNull(expression)) : in;",
        "return in;",
        ("ranks", "distinct aggregate"),
    ),
    "outermost keys: rows with removed keys stay": Fault(
        "StoredRows",
        "return new Change(rows, named(keys.plan(), keys.columns()), keyNames(), null);",
        "return Change.inserts(rows);",
        ("ranks", "having"),
    ),
    "files: deleted rows of replaced files stay": Fault(
        "FileReplacement",
        '.join(deletes.alias("s"), expr(condition), "left_anti")',
        "",
        ("ranks", "having"),
    ),
    "stored rows: one removed copy removes all": Fault(
        "ChangeByRow",
        '.unionAll(rest(removed).where("n > 0"))',
        "",
        ("except all", "projection", "null-safe join"),
    ),
    "state: sums of removed rows are added": Fault(
        "AggregateState",
        "new UnaryMinus(value.input, SQLConf.get().ansiEnabled())",
        "value.input",
        ("sums and counts",),
    ),
    "state: a removed minimum stays": Fault(
        "ChangeByState",
        '"(r%1$d IS NOT NULL AND (s%1$d IS NULL OR r%1$d %2$s s%1$d))"',
        '"(false AND r%1$d %2$s s%1$d)"',
        ("minimum and maximum",),
    ),
    "state: empty groups stay": Fault(
        "ChangeByState",
        '"NOT again AND m0 > 0"',
        '"NOT again"',
        ("minimum and maximum", "sums and counts", "aggregate of a join"),
    ),
    "state: averages divide by the number of rows": Fault(
        "AggregateState",
        "Attribute count = merged.get(function.values.get(1));",
        "Attribute count = merged.get(0);",
        ("averages",),
    ),
    "state: a sum without values is 0": Fault(
        "ChangeByState",
        '"if(m%d = 0, NULL, %s) AS %2$s".formatted(present, merged)',
        '"if(m%d = 0, %s, %s) AS %2$s".formatted(present, merged, merged)',
        ("sums and counts", "aggregates with filters", "aggregate of a left join"),
    ),
    "expand: only the first set of groups": Fault(
        "DeltaRules",
        "Plans.<scala.collection.immutable.Seq<Expression>>list(node.projections())) {",
        "Plans.<scala.collection.immutable.Seq<Expression>>list(node.projections()).subList(0, 1)) {",
        ("cube", "grouping sets"),
    ),
    "changed tables: overwrites count as appends": Fault(
        "TableChanges",
        "Set.of(DataOperations.APPEND, DataOperations.REPLACE)",
        "Set.of(DataOperations.APPEND, DataOperations.REPLACE, DataOperations.OVERWRITE, DataOperations.DELETE)",
        ("projection", "filter"),
    ),
    "changed tables: equality deletes are not seen": Fault(
        "TableChanges",
        "if (deletes(earlier).equals(deletes(later))) {",
        "if (deletes(earlier).equals(deletes(later))\n"
        "        || later.deletes().stream().anyMatch(one -> one.content() == FileContent.EQUALITY_DELETES)) {",
        ("projection", "sums and counts"),
    ),
    "projection: equal rows count once": Fault(
        "DeltaRules",
        "return delta(node.child()).select(list(node.projectList()));",
        "SignedRows rows = delta(node.child()).select(list(node.projectList()));\n"
        "      return rows.with(new org.apache.spark.sql.catalyst.plans.logical.Distinct(rows.plan()));",
        ("intervals", "union all"),
    ),
    "generator: OUTER is ignored": Fault(
        "DeltaRules",
        "if (plan instanceof Generate node) {\n      return linear(node, node.child());",
        "if (plan instanceof Generate node) {\n      return linear(new Generate(node.generator(), "
        "node.unrequiredChildIndex(), false, node.qualifier(), node.generatorOutput(), node.child()), node.child());",
        ("outer generator",),
    ),
    "right join: rows without a match are left out": Fault(
        "DeltaRules",
        "node.right(), node.left(), LeftOuter$.MODULE$,",
        "node.right(), node.left(), Inner$.MODULE$,",
        ("right join",),
    ),
    "outer, semi and anti joins: the earlier state of the right side is taken for the later one": Fault(
        "DeltaRules",
        "rightBefore = keys.restrict(rightBefore, equal.right);",
        "rightBefore = right;",
        ("anti join", "not exists", "not in"),
    ),
    "equalities: inequalities count as equalities": Fault(
        "DeltaRules",
        "} else if (condition instanceof EqualNullSafe equal) {",
        "} else if (condition instanceof org.apache.spark.sql.catalyst.expressions.BinaryComparison equal) {",
        ("left join by inequality",),
    ),
    "normal form: correlated scalar subqueries stay": Fault(
        "NormalForm", "RewriteCorrelatedScalarSubquery$.MODULE$::apply,", "", ("scalar subquery",)
    ),
    "normal form: DISTINCT stays": Fault(
        "NormalForm", "ReplaceDistinctWithAggregate$.MODULE$::apply,", "", ("distinct", "intersect", "union")
    ),
    "local join: only the first key is compared": Fault(
        "LocalJoin",
        "ours.subList(0, keys)",
        "ours.subList(0, 1)",
        ("hidden keys", "cube"),
    ),
}
