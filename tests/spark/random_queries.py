"""Random tables, queries and changes, for tests of incremental refreshes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


class Column(NamedTuple):
    name: str
    type: str
    """`int`, `long`, `decimal`, `double`, `string` or `date`."""


class Relation(NamedTuple):
    """A query and its columns."""

    sql: str
    columns: tuple[Column, ...]

    def of(self, *types: str) -> list[Column]:
        return [one for one in self.columns if one.type in types]


_SQL_TYPES = {
    "int": "INT",
    "long": "BIGINT",
    "decimal": "DECIMAL(12,2)",
    "double": "DOUBLE",
    "string": "STRING",
    "date": "DATE",
}
EQUALITY_DELETE = "EQUALITY DELETE"
_NUMBERS = ("int", "long", "decimal", "double")


@dataclass
class Table:
    """A table with the columns `id` and `k` (integers) and some more."""

    name: str
    columns: tuple[Column, ...]
    version: int
    mode: str
    others: list[str] = field(default_factory=list)
    """Names of the columns that the table has beside `columns`, which the queries do not read."""
    is_partitioned: bool = False
    keys: set[str] = field(default_factory=set)
    """Names of the columns of equality deletes. They cannot be dropped while a snapshot has the deletes."""

    def create(self) -> str:
        columns = ", ".join(f"{one.name} {_SQL_TYPES[one.type]}" for one in self.columns)
        modes = ", ".join(f"'write.{what}.mode' = '{self.mode}'" for what in ("delete", "update", "merge"))
        return f"CREATE TABLE {self.name} ({columns}) TBLPROPERTIES ('format-version' = '{self.version}', {modes})"


class Queries:
    """Random queries. The same seed gives the same queries."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self._names = 0

    def tables(self) -> list[Table]:
        """Three tables with random columns, of different format versions and write modes."""
        found = []
        for name in ("a", "b", "c"):
            types = self.random.sample(list(_SQL_TYPES) * 2, self.random.randint(2, 5))
            columns = [Column("id", "int"), Column("k", "int")]
            columns += [Column(f"{type[0]}{number}", type) for number, type in enumerate(types)]
            mode = self.random.choice(("copy-on-write", "merge-on-read"))
            found.append(Table(name, tuple(columns), self.random.choice((2, 3)), mode))
        return found

    def query(self, tables: list[Table], depth: int) -> Relation:
        """A query with up to `depth` operators on top of each other."""
        if depth == 0:
            table = self.random.choice(tables)
            return Relation(f"SELECT {_names(table.columns)} FROM {table.name}", table.columns)
        inner = self.query(tables, self.random.randint(0, depth - 1))
        kinds: list[Callable[[], Relation]] = [
            lambda: self._project(inner),
            lambda: self._filter(inner),
            lambda: self._aggregate(inner),
            lambda: self._aggregate(inner),
            lambda: self._join(inner, self.query(tables, self.random.randint(0, depth - 1))),
            lambda: self._join(inner, self.query(tables, self.random.randint(0, depth - 1))),
            lambda: self._exists(inner, self.query(tables, self.random.randint(0, depth - 1))),
            lambda: self._set(inner, self.query(tables, self.random.randint(0, depth - 1))),
            lambda: self._window(inner),
            lambda: self._distinct(inner),
            lambda: self._scalar(inner, self.query(tables, 0)),
            lambda: self._explode(inner),
        ]
        return self.random.choice(kinds)()

    def _name(self, prefix: str = "x") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _value(self, type: str) -> str:
        number = self.random.randint(-3, 6)
        return {
            "int": str(number),
            "long": f"{number * 10}L",
            "decimal": f"CAST({number}.25 AS DECIMAL(12,2))",
            "wide": f"CAST({number}.25 AS DECIMAL(22,2))",
            "average": f"{number * 0.25}D",
            "double": f"{number * 0.25}D",
            "string": f"'s{number % 4}'",
            "date": f"DATE '2024-01-{number + 10:02}'",
        }[type]

    def _condition(self, columns: list[Column], prefix: str = "") -> str:
        column = self.random.choice(columns)
        name = f"{prefix}{column.name}"
        compare = self.random.choice(("<", ">", "<=", "<>", "="))
        choices = [f"{name} {compare} {self._value(column.type)}", f"{name} IS NOT NULL"]
        if column.type == "int":
            choices.append(f"{name} % 2 = 0")
        if self.random.random() < 0.2:
            return f"({self._condition(columns, prefix)} OR {self.random.choice(choices)})"
        return self.random.choice(choices)

    def _expression(self, inner: Relation) -> tuple[str, str]:
        column = self.random.choice(inner.columns)
        name = column.name
        choices = [(f"coalesce({name}, {self._value(column.type)})", column.type)]
        choices.append((f"CASE WHEN {self._condition(list(inner.columns))} THEN {name} END", column.type))
        if column.type == "int":
            choices += [(f"abs({name}) % 3", "int"), (f"CAST({name} AS BIGINT) * 7", "long")]
        if column.type == "long":
            choices.append((f"{name} + 1", "long"))
        if column.type == "string":
            choices += [(f"upper({name})", "string"), (f"length({name})", "int")]
        if column.type == "double":
            choices.append((f"{name} / 2", "double"))
        return self.random.choice(choices)

    def _some(self, inner: Relation, least: int = 1) -> list[Column]:
        count = self.random.randint(min(least, len(inner.columns)), len(inner.columns))
        return self.random.sample(list(inner.columns), count)

    def _project(self, inner: Relation) -> Relation:
        columns = self._some(inner)
        items = [one.name for one in columns]
        for _ in range(self.random.randint(0, 2)):
            value, type = self._expression(inner)
            columns = [*columns, Column(self._name(), type)]
            items.append(f"{value} AS {columns[-1].name}")
        return Relation(f"SELECT {', '.join(items)} FROM ({inner.sql})", tuple(columns))

    def _filter(self, inner: Relation) -> Relation:
        condition = self._condition(list(inner.columns))
        return Relation(f"SELECT * FROM ({inner.sql}) WHERE {condition}", inner.columns)

    def _function(self, inner: Relation) -> tuple[str, str]:
        column = self.random.choice(inner.columns)
        name = column.name
        choices = [("count(*)", "long"), (f"count({name})", "long"), (f"count(DISTINCT {name})", "long")]
        if column.type in _NUMBERS:
            sum_type = {"int": "long", "long": "long", "double": "double"}.get(column.type, "wide")
            choices += [(f"sum({name})", sum_type), (f"avg({name})", "average")]
            choices.append((f"sum({name}) FILTER (WHERE {self._condition(list(inner.columns))})", sum_type))
        if column.type != "double":
            choices += [(f"min({name})", column.type), (f"max({name})", column.type)] * 2
        return self.random.choice(choices)

    def _aggregate(self, inner: Relation) -> Relation:
        keys = self.random.sample(list(inner.columns), self.random.randint(0, min(2, len(inner.columns))))
        shown = [one for one in keys if self.random.random() < 0.8]
        columns, items = list(shown), [one.name for one in shown]
        for _ in range(self.random.randint(1, 3)):
            value, type = self._function(inner)
            columns.append(Column(self._name(), type))
            items.append(f"{value} AS {columns[-1].name}")
        sql = f"SELECT {', '.join(items)} FROM ({inner.sql})"
        if keys:
            form = self.random.choice(("{}", "{}", "{}", "CUBE({})", "ROLLUP({})"))
            sql += f" GROUP BY {form.format(_names(keys))}"
            if self.random.random() < 0.25:
                sql += f" HAVING count(*) > {self.random.randint(0, 2)}"
        return Relation(sql, tuple(columns))

    def _join(self, left: Relation, right: Relation) -> Relation:
        pairs = [(one, other) for one in left.columns for other in right.of(one.type)]
        if not pairs:
            return self._distinct(left)
        kind = self.random.choice(("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        one, other = self.random.choice(pairs)
        condition = f"l.{one.name} = r.{other.name}"
        if self.random.random() < 0.2:
            condition = f"l.{one.name} <=> r.{other.name}"
        if self.random.random() < 0.2:
            condition += f" AND {self._condition(list(right.columns), 'r.')}"
        columns, items = [], []
        for side, prefix in ((left, "l"), (right, "r")):
            for column in self._some(side):
                columns.append(Column(self._name(), column.type))
                items.append(f"{prefix}.{column.name} AS {columns[-1].name}")
        sql = f"SELECT {', '.join(items)} FROM ({left.sql}) l {kind} ({right.sql}) r ON {condition}"
        return Relation(sql, tuple(columns))

    def _exists(self, left: Relation, right: Relation) -> Relation:
        pairs = [(one, other) for one in left.columns for other in right.of(one.type)]
        if not pairs:
            return self._filter(left)
        one, other = self.random.choice(pairs)
        inner = f"SELECT {other.name} FROM ({right.sql}) r"
        condition = self.random.choice(
            (
                f"EXISTS ({inner} WHERE r.{other.name} = l.{one.name})",
                f"NOT EXISTS ({inner} WHERE r.{other.name} = l.{one.name})",
                f"{one.name} IN ({inner})",
                f"{one.name} NOT IN ({inner} WHERE r.{other.name} IS NOT NULL)",
                f"({one.name} IN ({inner}) OR {self._condition(list(left.columns))})",
            )
        )
        return Relation(f"SELECT * FROM ({left.sql}) l WHERE {condition}", left.columns)

    def _set(self, left: Relation, right: Relation) -> Relation:
        pairs = [(one, other) for one in left.columns for other in right.of(one.type)]
        if not pairs:
            return self._filter(left)
        some = self.random.sample(pairs, self.random.randint(1, min(3, len(pairs))))
        columns = tuple(Column(self._name(), one.type) for one, _ in some)
        names = [one.name for one in columns]
        sides = (
            f"SELECT {', '.join(f'{pair[side].name} AS {name}' for pair, name in zip(some, names, strict=True))} "
            f"FROM ({relation.sql})"
            for side, relation in enumerate((left, right))
        )
        kinds = ("UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL")
        return Relation(f" {self.random.choice(kinds)} ".join(sides), columns)

    def _window(self, inner: Relation) -> Relation:
        key = self.random.choice(inner.columns)
        everything = _names(inner.columns)
        over = f"(PARTITION BY {key.name} ORDER BY {everything})"
        number = self.random.choice([*inner.of(*_NUMBERS), None])
        choices = [(f"row_number() OVER {over}", "int"), (f"rank() OVER {over}", "int")]
        choices.append((f"count(*) OVER (PARTITION BY {key.name})", "long"))
        if number is not None:
            choices += [
                (f"lag({number.name}) OVER {over}", number.type),
                (f"max({number.name}) OVER (PARTITION BY {key.name})", number.type),
            ]
        value, type = self.random.choice(choices)
        columns = (*inner.columns, Column(self._name(), type))
        sql = f"SELECT *, {value} AS {columns[-1].name} FROM ({inner.sql})"
        if self.random.random() < 0.3 and type == "int":
            return Relation(f"SELECT * FROM ({sql}) WHERE {columns[-1].name} = 1", columns)
        return Relation(sql, columns)

    def _distinct(self, inner: Relation) -> Relation:
        columns = self._some(inner)
        return Relation(f"SELECT DISTINCT {_names(columns)} FROM ({inner.sql})", tuple(columns))

    def _scalar(self, left: Relation, right: Relation) -> Relation:
        pairs = [(one, other) for one in left.columns for other in right.of(one.type)]
        if not pairs:
            return self._filter(left)
        one, other = self.random.choice(pairs)
        function = self.random.choice((f"max({right.columns[-1].name})", "count(*)"))
        type = "long" if function == "count(*)" else right.columns[-1].type
        column = Column(self._name(), type)
        inner = f"SELECT {function} FROM ({right.sql}) r WHERE r.{other.name} = l.{one.name}"
        return Relation(f"SELECT *, ({inner}) AS {column.name} FROM ({left.sql}) l", (*left.columns, column))

    def _explode(self, inner: Relation) -> Relation:
        column = self.random.choice(inner.columns)
        added = Column(self._name(), column.type)
        values = f"array({column.name}, {self._value(column.type)})"
        if column.type not in _SQL_TYPES:
            values = f"array({column.name})"
        sql = f"SELECT * FROM ({inner.sql}) LATERAL VIEW explode({values}) e AS {added.name}"
        return Relation(sql, (*inner.columns, added))

    def rows(self, table: Table, count: int) -> str:
        """The statement that inserts random rows."""
        rows = []
        for _ in range(count):
            values = [str(self.random.randint(0, 12)), self._or_null("int")]
            values += [self._or_null(one.type) for one in table.columns[2:]] + ["NULL"] * len(table.others)
            rows.append(f"({', '.join(values)})")
        return f"INSERT INTO {table.name} VALUES {', '.join(rows)}"

    def _or_null(self, type: str) -> str:
        if self.random.random() < 0.15:
            return f"CAST(NULL AS {_SQL_TYPES[type]})"
        if type == "double" and self.random.random() < 0.1:
            return "-0.0D"
        return self._value(type)

    def change(self, table: Table) -> str:
        """Statements that change a table, or `EQUALITY_DELETE`, the names of a table and a column, and a value."""
        position = self.random.randint(1, len(table.columns) - 1)
        before, column = table.columns[position - 1 : position + 1]
        other = self._name("more")
        condition = self._condition(list(table.columns))
        value = self._or_null(column.type)
        full = ", ".join(one.name for one in table.columns)
        kinds = {
            "insert": self.rows(table, self.random.randint(1, 6)),
            "delete": f"DELETE FROM {table.name} WHERE {condition}",
            "update": f"UPDATE {table.name} SET {column.name} = {value} WHERE {condition}",
            "merge": (
                f"MERGE INTO {table.name} t USING (SELECT DISTINCT id + 1 AS id FROM {table.name} WHERE {condition}) s "
                f"ON t.id = s.id WHEN MATCHED AND s.id % 5 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET "
                f"{column.name} = {value} WHEN NOT MATCHED THEN INSERT ({full}) "
                f"VALUES (s.id, {', '.join(self._or_null(one.type) for one in table.columns[1:])})"
            ),
            "overwrite": f"INSERT OVERWRITE {table.name} SELECT * FROM {table.name} WHERE {condition}",
            "compact": (
                "CALL polaris.system.rewrite_data_files("
                f"table => '{table.name}', options => map('rewrite-all', 'true'))"
            ),
            "partition": f"ALTER TABLE {table.name} ADD PARTITION FIELD bucket({self.random.randint(2, 99)}, id)",
            "add": f"ALTER TABLE {table.name} ADD COLUMN {other} INT",
        }
        weights = [6, 4, 4, 3, 1, 1, 0.4, 0.4]
        if column.name not in table.keys:
            kinds["again"] = (
                f"ALTER TABLE {table.name} DROP COLUMN {column.name}; ALTER TABLE {table.name} "
                f"ADD COLUMN {column.name} {_SQL_TYPES[column.type]} AFTER {before.name}"
            )
            weights.append(0.4)
        if table.others:
            kinds["drop"] = f"ALTER TABLE {table.name} DROP COLUMN {table.others[-1]}"
            kinds["rename"] = f"ALTER TABLE {table.name} RENAME COLUMN {table.others[-1]} TO {other}"
            weights += [0.4, 0.4]
        if column.type == "int":
            kinds["type"] = f"ALTER TABLE {table.name} ALTER COLUMN {column.name} TYPE BIGINT"
            weights.append(0.4)
        if column.type in ("long", "string") and not table.is_partitioned:
            literal = repr(
                self.random.randint(-3, 6) * 10 if column.type == "long" else f"s{self.random.randint(0, 3)}"
            )
            kinds["equality"] = f"{EQUALITY_DELETE} {table.name} {column.name} {literal}"
            weights.append(1.5)
        [kind] = self.random.choices(list(kinds), weights)
        if kind in ("drop", "rename"):
            table.others.pop()
        if kind in ("add", "rename"):
            table.others.append(other)
        if kind == "equality":
            table.keys.add(column.name)
        table.is_partitioned |= kind == "partition"
        return kinds[kind]


def _names(columns: list[Column] | tuple[Column, ...]) -> str:
    return ", ".join(one.name for one in columns)
