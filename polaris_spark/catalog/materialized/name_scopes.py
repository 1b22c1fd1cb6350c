"""Where names are visible in the Spark SQL text of a query: common table expressions (CTEs), and the relations of FROM
clauses. Both are found from the tokens of the text."""

from __future__ import annotations

from polaris_spark.catalog.materialized.sql_tokens import Tokens

QUERY_STARTS = frozenset({"SELECT", "WITH", "FROM", "TABLE", "VALUES"})
SET_OPERATORS = frozenset({"UNION", "INTERSECT", "EXCEPT", "MINUS"})


class Ctes:
    """The CTEs of a text.

    A CTE is visible after its definition, until the end of the query that begins with its WITH clause. A recursive CTE
    is also visible in its own definition. Each query except the outermost one is enclosed in parentheses.
    """

    def __init__(self, tokens: Tokens, *, case_sensitive: bool) -> None:
        self.case_sensitive = case_sensitive
        self.names: set[int] = set()
        """Indexes of the names in the definitions."""
        self.closings: set[int] = set()
        """Indexes of the parentheses that end the definitions."""
        self._visible: dict[str, list[range]] = {}
        for index in range(len(tokens)):
            if tokens.text(index) == "WITH" and (index == 0 or tokens.text(index - 1) == "("):
                self._add(tokens, index + 1, tokens.closings.get(tokens.openings[index], len(tokens)))

    def is_visible(self, name: str, index: int) -> bool:
        """Whether a name, at the token with the index `index`, refers to a CTE."""
        (key,) = folded_name((name,), case_sensitive=self.case_sensitive)
        return any(index in visible for visible in self._visible.get(key, ()))

    def _add(self, tokens: Tokens, name: int, end: int) -> None:
        """Add the CTEs of a WITH clause.

        Args:
            name: index of the token after WITH.
            end: index after the last token of the query that begins with this WITH clause.
        """
        recursive = tokens.text(name) == "RECURSIVE" and tokens.text(name + 1) not in ("AS", "(")
        name += recursive
        while tokens.is_name(name):
            body = name + 1
            if tokens.text(body) == "(" and tokens.text(tokens.closings[body] + 1) in ("AS", "("):
                body = tokens.closings[body] + 1
            body += tokens.text(body) == "AS"
            if tokens.text(body) != "(":
                return
            closing = tokens.closings[body]
            visible = range(body if recursive else closing, end)
            (key,) = folded_name((tokens[name].name,), case_sensitive=self.case_sensitive)
            self._visible.setdefault(key, []).append(visible)
            self.names.add(name)
            self.closings.add(closing)
            if tokens.text(closing + 1) != ",":
                return
            name = closing + 2
        if tokens.kind(name) == "string":
            # With spark.sql.ansi.doubleQuotedIdentifiers, Spark takes text in double quotes for a name.
            raise tokens.error(
                "the name of a common table expression must not be in quotes; write it in backquotes",
                tokens[name].start,
            )


class Scopes:
    """The scopes of a text, as numbers. A scope is the part of the text in which the relations of one FROM clause are
    visible. Each operand of a set operator, such as UNION, has its own scope."""

    def __init__(self, tokens: Tokens) -> None:
        self._parents = [-1]
        self._of_token: list[int] = []
        current = {-1: 0}
        """The latest scope directly in each pair of parentheses, by the index of its opening."""
        for index, opening in enumerate(tokens.openings):
            scope = current[opening]
            if index in tokens.closings:
                is_query = tokens.text(index + 1) in QUERY_STARTS
                current[index] = self._new(scope) if is_query else scope
            elif tokens.text(index) in SET_OPERATORS and tokens.text(index - 1) not in ("*", "."):
                current[opening] = self._new(self._parents[scope])
            self._of_token.append(current[opening])

    def around(self, index: int) -> list[int]:
        """Return the scopes that contain a token, the innermost first."""
        scopes = [self._of_token[index]]
        while (parent := self._parents[scopes[-1]]) >= 0:
            scopes.append(parent)
        return scopes

    def _new(self, parent: int) -> int:
        self._parents.append(parent)
        return len(self._parents) - 1


def folded_name(parts: tuple[str, ...], *, case_sensitive: bool) -> tuple[str, ...]:
    """Return the parts of a name in the form in which names are compared."""
    return parts if case_sensitive else tuple(part.lower() for part in parts)
