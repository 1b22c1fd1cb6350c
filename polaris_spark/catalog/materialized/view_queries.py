"""Finds the tables and views to which the Spark SQL text of a view refers, and replaces them in the text.

`references_of` finds the references, and `replaced` puts other text in their place. All other characters of the text
stay as they were: if the SQL were generated again from its syntax tree, its meaning could change.

sqlglot parses a copy of the text of the same length, in which comments, and clauses of Spark that sqlglot does not
know, are replaced by spaces or by synonyms. So every position in the copy is a position in the text. sqlglot finds the
references. The scopes of common table expressions (CTEs), and the clauses after a name, are found from the tokens.
Spark's grammar for a name and these clauses is:

```
relationPrimary: identifierReference temporalClause? optionsClause? sample? watermarkClause? tableAlias
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from polaris_spark.catalog.materialized.name_scopes import (
    QUERY_STARTS,
    SET_OPERATORS,
    Ctes,
    Scopes,
    folded_name,
)
from polaris_spark.catalog.materialized.sql_tokens import Tokens

if TYPE_CHECKING:
    from sqlglot import exp

_CLAUSES = SET_OPERATORS | {
    "FROM", "INTO", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE",
    "LIMIT", "OFFSET", "LATERAL", "PIVOT", "UNPIVOT", "JOIN", "INNER", "CROSS", "LEFT", "RIGHT",
    "FULL", "SEMI", "ANTI", "NATURAL", "ON", "USING", "AS", "WITH", "TABLESAMPLE",
}  # fmt: skip  # a list of words
"""Words that begin a clause, and so are not taken for a name."""
_FROM_FUNCTIONS = frozenset({"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY"})
"""Functions whose arguments may be separated by FROM."""
_NESTED_TYPES = frozenset({"ARRAY", "MAP", "STRUCT"})
_TIME_TRAVEL = frozenset({"VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME"})
_OPERATORS = frozenset({*"*/%+-~|&^[:.", "DIV", "CASE", "INTERVAL"})
"""Tokens that begin or continue an expression that is not a literal, name or call."""
_NO_ARGUMENT = "a table as the argument of a function is not supported"
_NO_QUERY = "SQL text of a view must be a query: SELECT, WITH, VALUES, FROM or TABLE"


class SourceReference(NamedTuple):
    """A reference to a table or view in the text of a query."""

    parts: tuple[str, ...]
    """Parts of the name, without quotes."""
    start: int
    """Position of the name's first character."""
    end: int
    """Position after the name. The alias and other clauses are not included."""
    version: str
    """Time travel clause after the name, verbatim, such as `VERSION AS OF 5`; empty if there is none."""
    identifier: str
    """The name verbatim, quotes included."""
    options: tuple[str, ...] = ()
    """Names of the options in a clause such as `WITH ('split-size' = '5')`, without quotes."""


class _Found(NamedTuple):
    """A reference to a table or view, and the positions that are needed to replace it."""

    reference: SourceReference
    scope: int
    has_alias: bool
    option_clause: tuple[int, int] | None
    """Positions of the clause `WITH (...)` with options, if there is one."""
    alias_position: int
    """Position after the clauses that precede an alias."""
    table_keyword: int | None
    """Position of the keyword TABLE before the name, if it is there. Such a name can have no alias."""


class _Relation(NamedTuple):
    """A name in a FROM clause with which columns can be qualified: an alias, a CTE, or the name of a table."""

    name: str
    """Folded (`Analysis.folded`)."""
    scope: int
    parts: tuple[str, ...]
    """Parts of the table's name, folded; empty for an alias and for a CTE."""


class Analysis(NamedTuple):
    """The references, names and scopes in the text of a query."""

    tokens: Tokens
    found: list[_Found]
    relations: list[_Relation]
    scopes: Scopes
    table_names: frozenset[int]
    """Indexes of the first tokens of the names of tables and CTEs."""
    case_sensitive: bool

    def folded(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Return the parts of a name in the form in which names are compared."""
        return folded_name(parts, case_sensitive=self.case_sensitive)


def references_of(sql: str, *, case_sensitive: bool = False) -> list[SourceReference]:
    """Return the references to tables and views in the query `sql`, in the order of their positions.

    A name is not a reference if it is the name of a CTE that is visible there. Table-valued functions are not
    references.

    Args:
        case_sensitive: whether names of CTEs are compared with regard to case, as with `spark.sql.caseSensitive`.
    Raises:
        BadRequestError: `sql` is not one query, has parameters, or has syntax in which references cannot be found.
    """
    return [found.reference for found in analyze(sql, case_sensitive=case_sensitive).found]


def replaced(
    sql: str,
    replacements: Mapping[int, str],
    full_names: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
    *,
    case_sensitive: bool = False,
) -> str:
    """Return the query `sql` with some of its references replaced by other text.

    A reference without an alias gets the last part of its name as its alias, so that columns qualified by it still
    resolve. Columns qualified by more parts of the name, as in `db.t.a`, are changed to be qualified by the alias. No
    alias is added if the replacement is a name that ends in the name of the reference. The options of a table
    (`WITH ('split-size' = '5')`) are left out if a query replaces it.

    Args:
        sql: text of the query.
        replacements: dict from the position `start` of each reference to its replacement. A replacement is a name, a
            name with a time travel clause, or a query in parentheses.
        full_names: dict from the position of a reference to the parts of the full name to which it resolves, with
            catalog and namespace. Columns can be qualified by it, too.
        case_sensitive: as for `references_of`.

    Raises:
        BadRequestError: for the same reasons as in `references_of`; or such a replacement is not allowed at this place,
            or after it a qualified column could belong to two tables.
        ValueError: a key of `replacements` is not the start of a reference.
    """
    analysis = analyze(sql, case_sensitive=case_sensitive)
    by_start = {found.reference.start: found for found in analysis.found}
    unknown = sorted(replacements.keys() - by_start.keys())
    if unknown:
        raise ValueError(f"no reference to a table or view starts at position {unknown[0]} of the text")
    edits: list[tuple[int, int, str]] = []
    aliased: list[_Found] = []
    for start, replacement in replacements.items():
        found = by_start[start]
        alias = _alias(analysis, found, replacement)
        edits += _edits(analysis.tokens, found, replacement, alias)
        if alias:
            aliased.append(found)
    edits += _qualifier_edits(analysis, aliased, full_names)
    pieces = []
    position = 0
    for start, end, text in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [sql[position:start], text]
        position = end
    return "".join([*pieces, sql[position:]])


def _alias(analysis: Analysis, found: _Found, replacement: str) -> str:
    """Return the clause ` AS alias` that a replacement needs; an empty string if it needs no alias, or cannot have
    one."""
    parts, name = found.reference.parts, analysis.folded(_simple_name(replacement))
    if (
        found.has_alias
        or name[-len(parts) :] == analysis.folded(parts)
        or (name and found.table_keyword is not None)
    ):
        return ""
    return f" AS {_quoted(parts[-1])}"


def _edits(tokens: Tokens, found: _Found, replacement: str, alias: str) -> Iterator[tuple[int, int, str]]:
    """Yield the edits of the text that replace one reference: (start, end, new text)."""
    reference = found.reference
    name = _simple_name(replacement)
    if reference.version and not name:
        raise tokens.error(
            f"table {reference.identifier} has a time travel clause, so its replacement must be a name, got "
            f"{replacement!r}",
            reference.start,
        )
    if found.option_clause is not None and replacement.lstrip().startswith("("):
        yield *found.option_clause, ""  # a query has no options
    if found.table_keyword is not None and not name:
        yield found.table_keyword, reference.end, f"SELECT * FROM {replacement}{alias}"
        return
    # Names in backticks need no space around them, but their replacements may.
    before = " " if _joins(tokens.sql[reference.start - 1 : reference.start], replacement[:1]) else ""
    after = " " if _joins(replacement[-1:], tokens.sql[reference.end : reference.end + 1]) else ""
    yield reference.start, reference.end, before + replacement + after
    yield found.alias_position, found.alias_position, alias


def _qualifier_edits(
    analysis: Analysis, aliased: list[_Found], full_names: Mapping[int, tuple[str, ...]]
) -> Iterator[tuple[int, int, str]]:
    """Yield edits of the text for columns that are qualified by two or more parts of a table's name. The edits qualify
    them by the new alias of the table instead."""
    by_last: dict[str, list[_Found]] = {}
    for found in aliased:
        by_last.setdefault(analysis.folded(found.reference.parts)[-1], []).append(found)
    for first, end in _columns(analysis) if aliased else ():
        parts = analysis.folded(analysis.tokens.parts(first, end))
        scopes = analysis.scopes.around(first)
        # Spark tries the longest qualifier first. The last part is the column or a star.
        for length in range(len(parts) - 1, 1, -1):
            matching = {
                found.scope: found
                for found in by_last.get(parts[length - 1], ())
                if analysis.folded(full_names.get(found.reference.start, found.reference.parts))[-length:]
                == parts[:length]
            }
            innermost = next((number for number, scope in enumerate(scopes) if scope in matching), None)
            if innermost is None:
                continue
            found = matching[scopes[innermost]]
            _require_unambiguous(analysis, found, scopes[: innermost + 1], first, end)
            last = analysis.tokens[first + 2 * (length - 1)]
            yield analysis.tokens[first].start, last.end, _quoted(found.reference.parts[-1])
            break


def _columns(analysis: Analysis) -> Iterator[tuple[int, int]]:
    """Yield the position of each column that is qualified by two or more names, such as `db.t.a` or `db.t.*`: the index
    of its first token, and the index after its last token."""
    tokens = analysis.tokens
    end = 0
    for first in range(len(tokens)):
        if first < end or not tokens.is_name(first):
            continue
        end = tokens.name_end(first)
        if (tokens.text(end), tokens.text(end + 1)) == (".", "*"):
            end += 2
        is_column = tokens.text(first - 1) not in (".", ":") and tokens.text(end) != "("
        if is_column and first not in analysis.table_names and end - first >= 5:
            yield first, end


def _require_unambiguous(analysis: Analysis, found: _Found, scopes: list[int], first: int, end: int) -> None:
    """Raise an error if a column that is qualified only by the last part of a table's name could also belong to another
    relation in one of the scopes."""
    tokens, parts = analysis.tokens, analysis.folded(found.reference.parts)
    start = tokens[first].start
    for relation in analysis.relations:
        if relation.scope in scopes and relation.name == parts[-1] and relation.parts != parts:
            raise tokens.error(
                f"column {tokens.sql[start : tokens[end - 1].end]} cannot be qualified by "
                f"{found.reference.parts[-1]!r} alone, because two relations have this name; "
                f"give table {found.reference.identifier} an alias",
                start,
            )


def analyze(sql: str, *, case_sensitive: bool = False) -> Analysis:
    """Find the references in the query `sql`, and the names and scopes that are needed to replace them.

    Args:
        case_sensitive: as for `references_of`.
    """
    tokens = Tokens(sql)
    try:
        _require_one_query(tokens)
        ctes = Ctes(tokens, case_sensitive=case_sensitive)
        copy = _Copy(tokens, ctes)
        return _analysis(tokens, ctes, copy, _parsed(tokens, copy.sql))
    except RecursionError:
        raise tokens.error("SQL text of a view is nested too deeply") from None


def _require_one_query(tokens: Tokens) -> None:
    """Check, before the text is parsed, that its tokens can be one query, and that they contain no syntax that is not
    supported."""
    first = next((token for token in tokens if token.text != "("), None)
    if first is None:
        raise tokens.error("SQL text of a view is empty")
    if first.text not in QUERY_STARTS:
        raise tokens.error(_NO_QUERY, first.start)
    ended = False
    for index, token in enumerate(tokens):
        after, message = tokens.text(index + 1), ""
        if token.text == ";":
            ended = True
        elif ended:
            message = "SQL text of a view must be one statement"
        elif token.text == "?":
            message = "SQL text of a view must have no parameters"
        elif token.text == "IDENTIFIER" and after == "(":
            message = "IDENTIFIER(...) is not supported, write the name itself"
        elif token.text == "TABLE" and after == "(" and tokens.text(index - 1) in ("(", ",", "=>"):
            message = _NO_ARGUMENT
        elif token.text == "MAX" and after == "RECURSION":
            message = "MAX RECURSION LEVEL is not supported"
        if message:
            raise tokens.error(message, token.start)


class _Copy:
    """The copy of the text that sqlglot parses, and the positions of the clauses that were left out of the copy."""

    def __init__(self, tokens: Tokens, ctes: Ctes) -> None:
        self.clauses: dict[int, int] = {}
        """Index after each clause that the copy lacks, by the index of its first token."""
        self.table_queries: set[int] = set()
        """Indexes of the keywords of queries `TABLE name`. In the copy, they are FROM."""
        characters = list(re.sub(r"[^\n]", " ", tokens.sql))
        extractions = _extractions(tokens)
        end = 0
        for index, token in enumerate(tokens):
            if index < end:
                continue
            end = _clause_end(tokens, index)
            if end > index:
                self.clauses[index] = end
                continue
            text = token.verbatim
            if token.kind == "string":
                text = _plain_string(text)
            elif token.text == "TABLE" and _starts_query(tokens, index, ctes):
                self.table_queries.add(index)
                text = "FROM "
            elif token.text == "WINDOW" and tokens.text(index + 1) == "(":
                text = "called"  # after GROUP BY, sqlglot would take Spark's function for a clause
            elif index in extractions:  # v:a is like v.a, and v:['a'] is like v['a']
                text = " " if tokens.text(index + 1) == "[" else "."
            characters[token.start : token.end] = text
        self.sql = "".join(characters)
        """The tokens at their positions, with spaces between them."""


def _extractions(tokens: Tokens) -> set[int]:
    """Return the indexes of the colons that extract a field of a variant, as in `v:a.b`. There are colons in casts
    (`a::INT`), in types (`STRUCT<a: INT>`) and before parameters (`a = :p`), too."""
    found = set()
    depth = 0
    """Number of the types whose fields enclose a token."""
    for index, token in enumerate(tokens):
        before = tokens.text(index - 1)
        if token.text == "<" and before in _NESTED_TYPES:
            depth += 1
        elif token.text == ">" and depth:
            depth -= 1
        elif token.text == ":" and ":" not in (before, tokens.text(index + 1)):
            is_after_value = tokens.is_name(index - 1) or before in (")", "]")
            if is_after_value and not depth and tokens[index - 1].end == token.start:
                found.add(index)
    return found


def _clause_end(tokens: Tokens, index: int) -> int:
    """If a clause that sqlglot does not know starts at `index`, such as `WITH ('key' = 'value')`, return the index
    after the clause; otherwise, return `index`."""
    before = tokens.text(index - 1)
    if before == ".":
        return index
    # sqlglot knows TABLESAMPLE after a name only, so the clause is left out. It knows the operator of a pipe, too.
    if tokens.text(index) in ("WITH", "TABLESAMPLE") and tokens.text(index + 1) == "(" and before != "|>":
        end = tokens.closings[index + 1] + 1
        if tokens.text(end) == "REPEATABLE" and tokens.text(end + 1) == "(":
            end = tokens.closings[end + 1] + 1
        return end
    return _time_travel_end(tokens, index)


def _time_travel_end(tokens: Tokens, first: int) -> int:
    """If a time travel clause starts at `first`, return the index after the clause; otherwise, return `first`. The
    clause is `FOR? (VERSION | SYSTEM_VERSION | TIMESTAMP | SYSTEM_TIME) AS OF value`.

    The value must be a literal, a name, a call, or an expression in parentheses.
    """
    kind = first + (tokens.text(first) == "FOR")
    value = kind + 3
    if not tokens.is_name(first - 1) or tokens.text(kind) not in _TIME_TRAVEL:
        return first
    if (tokens.text(kind + 1), tokens.text(kind + 2)) != ("AS", "OF") or tokens.text(value) in _CLAUSES:
        return first
    end = tokens.name_end(value)
    if tokens.text(end) == "(":
        end = tokens.closings[end] + 1
    while tokens.kind(end) == "string":
        end += 1
    if {tokens.text(value), tokens.text(end)} & _OPERATORS:
        raise tokens.error("an expression after AS OF must be in parentheses", tokens[first].start)
    if any(tokens.text(index) in QUERY_STARTS for index in range(value, end)):
        raise tokens.error("time travel by a subquery is not supported", tokens[first].start)
    return first if end == value else end


def _starts_query(tokens: Tokens, index: int, ctes: Ctes) -> bool:
    """Whether the word TABLE at `index` starts a query `TABLE name`."""
    if not _precedes_name(tokens, index):
        return False
    before = tokens.text(index - 1)
    if before in ("ALL", "DISTINCT"):
        before = tokens.text(index - 2)
    return index == 0 or before in ("(", *SET_OPERATORS) or index - 1 in ctes.closings


def _precedes_name(tokens: Tokens, index: int) -> bool:
    """Whether the token after `index` is a name, and not a word that begins a clause."""
    return tokens.is_name(index + 1) and tokens.text(index + 1) not in _CLAUSES


def _plain_string(text: str) -> str:
    """Return a string literal of the same length that every lexer reads in the same way: without a prefix, and without
    escapes and quotes inside."""
    prefix = " " if text[0] in "rR" else ""
    quote = text[len(prefix)]
    inside = re.sub(r"[\\'\"\r\n]", "x", text[len(prefix) + 1 : -1])
    return f"{prefix}{quote}{inside}{quote}"


def _parsed(tokens: Tokens, copy: str) -> exp.Query | exp.Values:
    """Parse the copy of the text, and return the syntax tree of its query."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError

    try:
        parsed = [one for one in sqlglot.parse(copy, dialect="spark") if one is not None]
    except RecursionError:
        raise
    except Exception as error:  # sqlglot fails with errors of many types on text that it does not know
        details: dict[str, Any] = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        reason = str(details.get("description") or "it has syntax that sqlglot rejects").rstrip(".")
        # sqlglot gives the column of the last character of the token.
        place = f", at line {details['line']}, up to column {details['col']}" if details.get("line") else ""
        raise tokens.error(f"SQL text of a view cannot be parsed: {reason}{place}") from error
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Query | exp.Values):
        raise tokens.error(_NO_QUERY)
    if parsed[0].find(exp.Placeholder, exp.Parameter) is not None:
        raise tokens.error("SQL text of a view must have no parameters")
    return parsed[0]


def _analysis(tokens: Tokens, ctes: Ctes, copy: _Copy, query: exp.Query | exp.Values) -> Analysis:
    """Combine the references that sqlglot found with the scopes and clauses that were found from the tokens."""
    from sqlglot import exp

    def folded(parts: tuple[str, ...]) -> tuple[str, ...]:
        return folded_name(parts, case_sensitive=ctes.case_sensitive)

    scopes = Scopes(tokens)
    by_start = {token.start: index for index, token in enumerate(tokens)}
    found: dict[int, _Found] = {}
    relations: list[_Relation] = []
    names: set[int] = set()
    versions: set[int] = set()
    for table in query.find_all(exp.Table):
        is_function = not all(isinstance(part, exp.Identifier) for part in table.parts)
        position = table.parts[0].meta.get("start", -1)
        index = by_start.get(position, len(tokens))
        if table.parts[0].name.upper() == "STREAM" and (is_function or _precedes_name(tokens, index)):
            raise tokens.error("a view must not read a stream", position)
        if is_function:
            continue
        end = tokens.name_end(index)
        parts = tokens.parts(index, end)
        if parts != tuple(part.name for part in table.parts):
            if table.parts[0].name.startswith("__tmp"):
                continue  # sqlglot makes CTEs of the steps of a pipe
            raise tokens.error(f"the name of table {table.name!r} has syntax that is not supported", position)
        if index in names:
            continue  # sqlglot repeats parts of a pipe
        names.add(index)
        clauses = _clauses_after(tokens, copy, end)
        versions.update(clauses.versions)
        after = clauses.end
        # Aliases of other clauses, such as PIVOT, do not belong to the table.
        alias = table.args.get("alias")
        alias_start = alias.this.meta.get("start", -1) if alias is not None and alias.this is not None else -1
        has_alias = by_start.get(alias_start) == after + (tokens.text(after) == "AS")
        is_cte = len(parts) == 1 and ctes.is_visible(parts[0], index)
        scope = scopes.around(index)[0]
        if not has_alias:
            relations.append(_Relation(folded(parts)[-1], scope, () if is_cte else folded(parts)))
        if is_cte:
            continue
        keyword = tokens[index - 1].start if index - 1 in copy.table_queries else None
        query_of_table = table.find_ancestor(exp.Query)
        owner = query_of_table.parent if query_of_table is not None else None
        if keyword is not None and isinstance(owner, exp.Func) and not isinstance(owner, exp.Exists):
            raise tokens.error(_NO_ARGUMENT, keyword)  # sqlglot would take further arguments for tables
        start, stop = tokens[index].start, tokens[end - 1].end
        reference = SourceReference(
            parts, start, stop, clauses.version, tokens.sql[start:stop], tuple(clauses.options)
        )
        found[start] = _Found(reference, scope, has_alias, clauses.options_at, tokens[after - 1].end, keyword)
    for alias in query.find_all(exp.TableAlias):
        if isinstance(alias.this, exp.Identifier) and not isinstance(alias.parent, exp.CTE):
            index = by_start.get(alias.this.meta.get("start", -1), -1)
            if index >= 0:
                relations.append(_Relation(folded((alias.this.name,))[0], scopes.around(index)[0], ()))
    _require_all_found(tokens, copy, names, versions)
    in_order = [found[start] for start in sorted(found)]
    return Analysis(tokens, in_order, relations, scopes, frozenset(names | ctes.names), ctes.case_sensitive)


class _Clauses(NamedTuple):
    """The clauses that directly follow the name of a table, such as a version, options or a sample."""

    end: int
    """Index of the first token after the clauses."""
    versions: list[int]
    """Indexes of the first tokens of the clauses that give a version."""
    version: str
    """Text of the last of these clauses; empty if there is none."""
    options: list[str]
    """Names of the options."""
    options_at: tuple[int, int] | None
    """Begin and end of the clause with options in the SQL text."""


def _clauses_after(tokens: Tokens, copy: _Copy, end: int) -> _Clauses:
    """Return the clauses after the name of a table that ends before the index `end`."""
    after, version, options_at = end, "", None
    versions, options = list[int](), list[str]()
    while after in copy.clauses:
        clause, after = after, copy.clauses[after]
        if tokens.text(clause) == "WITH":
            options_at = tokens[clause].start, tokens[after - 1].end
            options += _option_names(tokens, clause, after)
        elif tokens.text(clause) != "TABLESAMPLE":
            versions.append(clause)
            version = tokens.sql[tokens[clause].start : tokens[after - 1].end]
    return _Clauses(after, versions, version, options, options_at)


def _option_names(tokens: Tokens, first: int, end: int) -> Iterator[str]:
    """Yield the names of the options in the clause `WITH (...)` from the index `first` to before `end`."""
    for index in range(first + 1, end - 1):
        if tokens.text(index) not in ("(", ",") or tokens.kind(index + 1) == "symbol":
            continue
        name = index + 1
        stop = tokens.name_end(name)
        if stop == name:  # a string
            yield tokens[name].text.lstrip("rR")[1:-1]
        else:
            yield ".".join(tokens.parts(name, stop))


def _require_all_found(tokens: Tokens, copy: _Copy, names: set[int], versions: set[int]) -> None:
    """Check that sqlglot recognized every name after FROM, JOIN or TABLE as a table, so that none is left
    unreplaced."""
    for index, token in enumerate(tokens):
        word, before = tokens.text(index), tokens.text(index - 1)
        if index in copy.table_queries:
            expected = True
        elif word not in ("FROM", "JOIN") or before == "." or not _precedes_name(tokens, index):
            expected = False
        else:
            expected = not (
                tokens.text(index + 1) in ("SELECT", "VALUES")
                or tokens.text(tokens.name_end(index + 1)) == "("  # a table-valued function
                or tokens.text(tokens.openings[index] - 1) in _FROM_FUNCTIONS
                or (before == "DISTINCT" and tokens.text(index - 2) in ("IS", "NOT"))
            )
        if expected and index + 1 not in names:
            raise tokens.error(
                f"the name of a table is expected after {word}, but cannot be recognized", token.start
            )
        if index in copy.clauses and word not in ("WITH", "TABLESAMPLE") and index not in versions:
            raise tokens.error("a time travel clause must follow the name of a table", token.start)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _simple_name(text: str) -> tuple[str, ...]:
    """Return the parts of the name if `text`, which replaces a reference to a table or view in a query,
    is only a name; an empty tuple if it is a query or has a time travel clause."""
    if text.lstrip().startswith("("):
        return ()
    tokens = Tokens(text)
    return tokens.parts(0, len(tokens)) if tokens.name_end(0) == len(tokens) else ()


def _joins(left: str, right: str) -> bool:
    """Whether a lexer could read two adjacent characters as parts of the same token."""
    return re.fullmatch(r"\w\w|``", left + right) is not None
