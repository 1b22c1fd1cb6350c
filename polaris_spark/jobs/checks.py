"""Checks before merges into protected branches: the procedures that add, drop and show them, and their evaluation.

There are two kinds. An SQL check is stored with a branch, and a Spark session evaluates it. A Python check is a
function of an installed package, which applies to all protected branches and needs no Spark. Its package names it as an
entry point of the group `polaris_spark.checks`:

```toml
[project.entry-points."polaris_spark.checks"]
no_drops = "my_package:no_drops"
```
```python
def no_drops(merged: polaris_spark.jobs.checks.MergedCatalog) -> None:
    for change in merged.diff:
        if change.change == "removed":
            raise ValueError(f"{change.name} would be dropped")
```
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from polaris_spark.access.needs import Need, On
from polaris_spark.jobs.procedure import IF_EXISTS, Call, Column, Parameter, Procedure, columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from polaris_spark.catalog.branches.checks import Check
    from polaris_spark.catalog.merges.checked_merge import CheckOutcome, MergedState
    from polaris_spark.catalog.merges.differences import Described
    from polaris_spark.rest.session import Session

GROUP = "polaris_spark.checks"
"""Group of the entry points of Python checks."""

_NO_SPARK = (
    "it is an SQL query, which only Spark can evaluate: call the procedure in Spark SQL, or with --spark"
)


@dataclass(frozen=True)
class MergedCatalog:
    """The argument of a Python check: the state of a protected branch after a merge, revert or cherry-pick that is not
    committed yet."""

    branch: str
    """Name of the protected branch."""
    label: str
    """Description of the merge, such as `merge dev`, `revert 42` or `cherry-pick dev#17`."""
    diff: Sequence[Described]
    """The namespaces, tables and views that the merge, revert or cherry-pick adds, removes, renames or changes, as the
    procedure `diff` shows them."""
    session: Session
    """The catalog in the merged state, as `polaris_spark.connect` returns one. It cannot be changed. It can be used
    until the check returns."""


PythonCheck = Callable[[MergedCatalog], object]
"""A Python check. It raises any exception to refuse the merge; what it returns is not used. It may be called several
times for one merge, and must not change anything."""


class ChecksOfCall:
    """Evaluates the checks of protected branches for a call of a procedure."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @cached_property
    def _own(self) -> list[importlib.metadata.EntryPoint]:
        """The checks of other packages. Finding them takes milliseconds, and only protected branches need them."""
        return list(importlib.metadata.entry_points(group=GROUP))

    @property
    def has_own_checks(self) -> bool:
        return bool(self._own)

    def not_evaluated(self, checks: Sequence[Check], reason: str) -> list[CheckOutcome]:
        from polaris_spark.catalog.merges.checked_merge import CheckOutcome

        names = [check.name for check in checks] + [one.name for one in self._own]
        return [CheckOutcome(name, reason, evaluated=False) for name in names]

    def outcomes(self, merged: MergedState) -> list[CheckOutcome]:
        return [*self._of_sql(merged), *self._of_python(merged)]

    def _of_sql(self, merged: MergedState) -> Iterator[CheckOutcome]:
        from polaris_spark.catalog.merges.checked_merge import CheckOutcome

        if not merged.checks:
            return
        if not self._call.answers_spark:
            yield from (CheckOutcome(check.name, _NO_SPARK, evaluated=False) for check in merged.checks)
            return
        with _reading(self._call, merged.state) as spark:
            for position, check in enumerate(merged.checks):
                self._call.progress(f"evaluating check {check.name}", position, len(merged.checks))
                yield CheckOutcome(check.name, _problem(spark, check.sql))

    def _of_python(self, merged: MergedState) -> Iterator[CheckOutcome]:
        from polaris_spark.catalog.merges.checked_merge import CheckOutcome
        from polaris_spark.catalog.merges.differences import changed_entities, described

        if not self._own:
            return
        read, view = merged.catalog.reader.read_shards, merged.catalog.view(merged.after)
        changes = changed_entities(read, merged.before.commit, merged.after.commit).values()
        diff = tuple(row for change in changes if (row := described(change, view)) is not None)
        session = self._call.session.derive(catalog=merged.catalog)
        given = MergedCatalog(merged.branch, merged.label, diff, session)
        for entry in self._own:
            self._call.progress(f"evaluating check {entry.name}")
            try:
                entry.load()(given)
            except (
                Exception
            ) as error:  # any error refuses the merge, also that of a check that cannot be loaded
                yield CheckOutcome(entry.name, str(error) or type(error).__name__)
            else:
                yield CheckOutcome(entry.name, "")


@contextmanager
def _reading(call: Call, state: str) -> Iterator[SparkSession]:
    """Return a new Spark session that reads a state of the catalog. It has the catalogs of the caller's session, and
    none of its temporary views, functions and other settings, which checks should not depend on."""
    from polaris_spark.catalog.materialized.snapshot_sql import quoted
    from polaris_spark.errors import StateError
    from polaris_spark.jobs.materialized_views.plan import spark_catalog
    from polaris_spark.jobs.materialized_views.query_engine import message_of

    outer, name = call.spark(), spark_catalog(call)
    spark = outer.newSession()
    for key, value in outer.conf.getAll.items():
        if key.startswith("spark.sql.catalog."):
            spark.conf.set(key, value)
    spark.conf.set("spark.sql.variable.substitute", "false")
    jvm: Any = spark._jvm
    sessions: Any = jvm.org.apache.spark.sql.SparkSession
    try:
        sessions.setActiveSession(spark._jsparkSession)
        try:
            spark.catalog.setCurrentCatalog(name)
            spark.sql(f"CALL {quoted((name,))}.system.use('{state}')").collect()
        except Exception as error:  # Spark reports all errors in its own classes
            raise StateError(
                "the merged state cannot be read in Spark; nothing was changed. The settings "
                f"spark.sql.catalog.{name}.* must be as they were when this session first used the catalog; set "
                f"them back, or begin a new session. Spark reports: {message_of(error)}"
            ) from error
        yield spark
    finally:
        sessions.setActiveSession(outer._jsparkSession)


def _problem(spark: SparkSession, sql: str) -> str:
    """Evaluate an SQL check. Return why it does not hold; an empty string if it holds."""
    from polaris_spark.jobs.materialized_views.query_engine import message_of

    try:
        # In parentheses, Spark accepts queries only, and no statement that changes something.
        result = spark.sql(f"SELECT * FROM (\n{sql}\n)")
        if len(result.columns) != 1:
            return f"its query has {len(result.columns)} columns instead of one"
        rows = result.take(2)
    except Exception as error:  # Spark reports all errors in its own classes
        return f"its query fails: {message_of(error)}"
    if len(rows) != 1:
        return f"its query returns {'no row' if not rows else 'more than one row'} instead of one"
    [value] = rows[0]
    if value is True:
        return ""
    shown = {None: "null", False: "false"}.get(value) if value is None or value is False else repr(value)
    return f"its query returns {str(shown)[:200]} instead of true"


def _add(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.checks import Check, add_check

    branch, check = arguments["branch"], Check(arguments["name"], arguments["sql"])
    added = add_check(call.session.catalog, branch, check, call.session.operation())
    return [(branch, *added)]


def _drop(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.checks import drop_check
    from polaris_spark.errors import NotFoundError

    branch, name = arguments["branch"], arguments["name"]
    try:
        drop_check(call.session.catalog, branch, name, call.session.operation())
    except NotFoundError:
        if not arguments.get("if_exists", False):
            raise
        return [(branch, name, False)]
    return [(branch, name, True)]


def _show(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.checks import checks_of

    branch = arguments.get("branch", call.session.catalog.branch)
    stored = [(branch, check.name, "sql", check.sql) for check in checks_of(call.session.catalog, branch)]
    own = importlib.metadata.entry_points(group=GROUP)
    return stored + [(branch, one.name, "python", one.value) for one in own]


_BRANCH = Parameter("branch", "STRING", "name of the branch", required=True)
_NAME = Parameter("name", "STRING", "name of the check", required=True)
_COLUMNS = columns("branch STRING, name STRING")
ADD = Procedure(
    name="add_check",
    needs=(Need("BRANCH_WRITE_PROPERTIES", On.BRANCH, parameter="branch"),),
    comment="Add a check to a branch: an SQL query that must be true before a merge into the branch, if it is "
    "protected.",
    parameters=(
        _BRANCH,
        _NAME,
        Parameter(
            "sql",
            "STRING",
            "a query of one row and one column, such as SELECT count(*) > 0 FROM db.t",
            required=True,
        ),
    ),
    columns=(*_COLUMNS, Column("sql", "STRING")),
    run=_add,
    over_http=True,
)
DROP = Procedure(
    name="drop_check",
    needs=(Need("BRANCH_WRITE_PROPERTIES", On.BRANCH, parameter="branch"),),
    comment="Drop a check of a branch.",
    parameters=(
        _BRANCH,
        _NAME,
        IF_EXISTS,
    ),
    columns=(*_COLUMNS, Column("dropped", "BOOLEAN")),
    run=_drop,
    over_http=True,
)
SHOW = Procedure(
    name="show_checks",
    needs=(Need("BRANCH_LIST", On.BRANCH, parameter="branch"),),
    comment="List the checks of a branch: its SQL checks, and the Python checks of packages that are installed here.",
    parameters=(Parameter("branch", "STRING", "name of the branch; by default, the branch of the session"),),
    columns=(*_COLUMNS, *columns("kind STRING, definition STRING")),
    run=_show,
    over_http=True,
    only_reads=True,
)
