"""Finds the functions that the query of a view calls, and the clauses of the query whose result may differ between two
runs on the same data."""

from __future__ import annotations

import re

from polaris_spark.catalog.materialized.view_queries import analyze

_DATETIME_TYPES = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_RELATIVE_TIME = re.compile(r"[rR]?.\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Literals such as TIMESTAMP 'now', whose value is the time at which the query runs."""


def called_functions(sql: str) -> list[str]:
    """Return the names of the functions that the query `sql` may call, each once. Functions that are called by a name
    with a namespace, such as `db.f`, are left out.

    A word before a parenthesis that is not the name of a function, such as `IN`, is returned, too.

    Raises:
        BadRequestError: for the same reasons as in `references_of`.
    """
    tokens = analyze(sql).tokens
    calls = [at for at in range(len(tokens)) if tokens.text(at + 1) == "(" and tokens.text(at - 1) != "."]
    return list(dict.fromkeys(name for at in calls if (name := tokens[at].name)))


def nondeterministic_clauses(sql: str) -> list[str]:
    """Return the clauses of the query `sql` whose result may differ between two runs on the same data, and which
    Spark's plan does not show: `tablesample` for a TABLESAMPLE clause without REPEATABLE, and `now`, `today`,
    `tomorrow` or `yesterday` for a literal such as TIMESTAMP 'now', which Spark replaces by a time when it parses the
    query.

    Raises:
        BadRequestError: for the same reasons as in `references_of`.
    """
    tokens = analyze(sql).tokens
    found: dict[str, None] = {}
    for index, token in enumerate(tokens):
        if token.kind == "string":
            relative = _RELATIVE_TIME.match(token.text)
            if relative and tokens.text(index - 1) in _DATETIME_TYPES:
                found[relative.group(1).lower()] = None
            continue
        is_sample = token.name.lower() == "tablesample" and tokens.text(index + 1) == "("
        if is_sample and tokens.text(tokens.closings[index + 1] + 1) != "REPEATABLE":
            found["tablesample"] = None
    return list(found)
