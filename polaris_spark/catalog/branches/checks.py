"""Checks of branches: SQL queries that must be true before a merge into a protected branch is committed. Reverts and
cherry-picks are merges of other states (`catalog.merges.state_merge`), so they are checked as well.

The checks of a branch are in the index of its commits that also says whether the branch is protected. So adding a check
is a commit to the branch, and a merge that has not evaluated the check cannot be committed after it
(`catalog.merges.checked_merge`). A branch that is created from another branch does not get its checks.

| key | value |
| --- | --- |
| `check/` and the name of a check | its SQL text, in UTF-8 |
"""

from __future__ import annotations

from typing import NamedTuple

from polaris_spark.catalog.branches.branches import branch_of
from polaris_spark.catalog.branches.merge_base import CHECKS
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.catalogs import catalog_key
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.entities.entities import Context, TimedChange
from polaris_spark.catalog.materialized.sql_tokens import Tokens
from polaris_spark.catalog.rows import CatalogRow
from polaris_spark.commits.change import Operation, Unrepeated
from polaris_spark.commits.settings import PROTECTION
from polaris_spark.commits.state import State, reading_state
from polaris_spark.errors import AlreadyExistsError, BadRequestError, NotFoundError
from polaris_spark.index import Entry
from polaris_spark.names import AREA, problem_of

MAX_NAME_BYTES = 200
"""Maximum length of the name of a check, in bytes of UTF-8."""
MAX_SQL_BYTES = 8_192
"""Maximum length of the SQL text of a check, in bytes of UTF-8."""
MAX_CHECKS = 100
"""Maximum number of checks of a branch."""

_END = CHECKS[:-1] + bytes([CHECKS[-1] + 1])
_QUERIES = ("SELECT", "WITH", "VALUES", "(")
"""First words of queries."""


class Check(NamedTuple):
    """A SQL query that must be true before a merge into a protected branch is committed."""

    name: str
    sql: str
    """A query. The check holds if the query returns one row with one column, which is true."""


def checks_in(state: State) -> list[Check]:
    """Return the checks of a branch, sorted by name."""
    return [
        Check(key.removeprefix(CHECKS).decode(), entry.value.decode())
        for key, entry in state.scan(PROTECTION, CHECKS, _END)
    ]


def checks_of(catalog: Catalog, branch: str) -> list[Check]:
    """Return the checks of a branch, sorted by name.

    Raises:
        NotFoundError: the branch does not exist.
    """
    return checks_in(reading_state(branch_of(catalog, branch)))


def add_check(catalog: Catalog, branch: str, check: Check, operation: Operation) -> Check:
    """Add a check to a branch, and return the check. From then on, while the branch is protected, a merge can be
    committed to the branch only if the merge has evaluated the check.

    Args:
        check: its SQL text may end with a semicolon, which is removed.
    Raises:
        AlreadyExistsError: the branch has another check of this name.
        BadRequestError: no check can have this name, the text is not one query, or the branch has too many checks.
        NotFoundError: the branch does not exist.
    """
    problem = problem_of(check.name)
    if problem is None and len(check.name.encode()) > MAX_NAME_BYTES:
        problem = f"is longer than {MAX_NAME_BYTES} bytes"
    if problem is not None:
        raise BadRequestError(f"{check.name[:200]!a} cannot be the name of a check: the name {problem}")
    if branch.startswith(AREA):
        raise BadRequestError(
            f"{branch!r} is a staging area; add the check to the branch into which the area is committed"
        )
    added = check._replace(sql=_query(check))
    _commit(catalog, branch, _Add(catalog.context, operation, catalog.row, branch, added))
    return added


def drop_check(catalog: Catalog, branch: str, name: str, operation: Operation) -> None:
    """Drop a check of a branch.

    Raises:
        NotFoundError: the branch does not exist, or has no such check.
    """
    _commit(catalog, branch, _Drop(catalog.context, operation, catalog.row, branch, name))


def _commit(catalog: Catalog, branch: str, change: _Change) -> None:
    branch_of(catalog, branch)  # raises an error that lists the branches if it does not exist
    catalog.references.commit(head_name(catalog.row, branch), change)


def _query(check: Check) -> str:
    """Return the SQL text of a check without a semicolon at its end.

    Raises:
        BadRequestError: the text is not one query.
    """
    try:
        if len(check.sql.encode()) > MAX_SQL_BYTES:
            raise BadRequestError(f"the text is longer than {MAX_SQL_BYTES} bytes")
        tokens = Tokens(check.sql)
        ends = [index for index in range(len(tokens)) if tokens.text(index) == ";"]
        sql = check.sql
        if ends and ends[0] == len(tokens) - 1:
            sql = sql[: tokens[ends[0]].start]
        elif ends:
            raise BadRequestError("the text has several statements; write one query")
        if not tokens or tokens.text(0) not in _QUERIES:
            raise BadRequestError("the text must begin with SELECT, WITH or VALUES")
        return sql.strip()
    except (BadRequestError, UnicodeEncodeError) as error:
        raise BadRequestError(
            f"the SQL text of check {check.name!r} must be one query, such as SELECT count(*) = 0 FROM db.t WHERE "
            f"id IS NULL: {error}"
        ) from error


class _Change(Unrepeated, TimedChange[None]):
    onto_protected = True

    def __init__(
        self, context: Context, operation: Operation, row: CatalogRow, branch: str, name: str
    ) -> None:
        super().__init__(context, operation._replace(id=b""))
        self._row = row
        self._branch = branch
        self._name = name
        self._key = CHECKS + name.encode()

    def _log(self, state: State, now: int, sql: str) -> None:
        summary = {"check": self._name, "sql": sql}
        self.record(state, now, self._row.entity_id, catalog_key(self._row.name), summary=summary)


class _Add(_Change):
    action = "add-check"

    def __init__(
        self, context: Context, operation: Operation, row: CatalogRow, branch: str, check: Check
    ) -> None:
        super().__init__(context, operation, row, branch, check.name)
        self._check = check

    def apply(self, state: State, prepared: int) -> None:
        present = dict(state.scan(PROTECTION, CHECKS, _END))
        entry = Entry(value=self._check.sql.encode())
        if present.get(self._key) == entry:
            return
        if self._key in present:
            raise AlreadyExistsError(
                f"branch {self._branch!r} already has a check {self._name!r} with other SQL text; drop it first"
            )
        if len(present) >= MAX_CHECKS:
            raise BadRequestError(f"branch {self._branch!r} already has {MAX_CHECKS} checks, the maximum")
        state.put(PROTECTION, self._key, entry)
        self._log(state, prepared, self._check.sql)


class _Drop(_Change):
    action = "drop-check"

    def apply(self, state: State, prepared: int) -> None:
        present = state.scan(PROTECTION, CHECKS, _END)
        found = dict(present).get(self._key)
        if found is None:
            known = ", ".join(repr(key.removeprefix(CHECKS).decode()) for key, _ in present) or "none"
            raise NotFoundError(
                f"branch {self._branch!r} has no check {self._name!r}; its checks are: {known}"
            )
        state.remove(PROTECTION, self._key)
        self._log(state, prepared, found.value.decode())
