"""The functions that the query of a view calls, and those whose result may differ between two runs on the same data."""

from __future__ import annotations

import re

from polaris_spark.catalog.view_queries import analyze

_NONDETERMINISTIC = frozenset({
    "aes_encrypt", "curdate", "current_catalog", "current_database", "current_date",
    "current_schema", "current_time", "current_timestamp", "current_timezone", "current_user",
    "input_file_block_length", "input_file_block_start", "input_file_name", "java_method",
    "localtimestamp", "monotonically_increasing_id", "now", "rand", "randn", "random", "randstr",
    "reflect", "session_user", "shuffle", "spark_partition_id", "try_reflect", "uniform", "user",
    "uuid", "version",
})  # fmt: skip  # a list of words
_WITHOUT_PARENTHESES = frozenset(
    ["current_date", "current_time", "current_timestamp", "current_user", "session_user", "user"]
)
"""Alternatives of `currentLike` in Spark's grammar: functions that may be called without parentheses."""
_DATETIME_TYPES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_RELATIVE_TIME = re.compile(r"[rR]?.\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Literals such as TIMESTAMP 'now', whose value is the time at which the query runs."""


def called_functions(sql: str) -> list[str]:
    """Names without a namespace of the functions that the query `sql` may call, each once.

    A word before a parenthesis that is not the name of a function, such as `IN`, is returned, too.

    Raises:
        BadRequestError: as by `references_of`.
    """
    tokens = analyze(sql).tokens
    calls = [at for at in range(len(tokens)) if tokens.text(at + 1) == "(" and tokens.text(at - 1) != "."]
    return list(dict.fromkeys(name for at in calls if (name := tokens[at].name)))


def nondeterministic_functions(sql: str) -> list[str]:
    """Names, in lower case, of functions in the query `sql` whose result may differ between two runs on the same data,
    in the order of their first call.

    Such functions depend on chance, the time, the session, the release of Spark, or the division of the data into files
    and partitions. A `TABLESAMPLE` clause without `REPEATABLE` counts as a function `tablesample`, and a literal such
    as `TIMESTAMP 'now'` as a function `now`. Aggregates that depend on the order of rows, such as `first`, are not
    named. A name such as `user`, without parentheses, is returned even if it is that of a column, because Spark calls
    the function only if there is no such column.

    Raises:
        BadRequestError: as by `references_of`.
    """
    analysis = analyze(sql)
    tokens = analysis.tokens
    found: dict[str, None] = {}
    for index, token in enumerate(tokens):
        before, after = tokens.text(index - 1), tokens.text(index + 1)
        name = token.name.lower()
        if token.kind == "string":
            relative = _RELATIVE_TIME.match(token.text)
            if relative and before in _DATETIME_TYPES:
                found[relative.group(1).lower()] = None
        elif before == "AS" or index in analysis.table_names:
            continue
        elif after == "(":
            closing = tokens.closings[index + 1]
            if (
                name in _NONDETERMINISTIC
                or (name == "unix_timestamp" and closing == index + 2)
                or (name == "tablesample" and tokens.text(closing + 1) != "REPEATABLE")
            ):
                found[name] = None
        elif name in _WITHOUT_PARENTHESES and "." not in (before, after):
            found[name] = None
    return list(found)
