"""Merges into protected branches, whose checks must hold in the merged state before it is committed. Reverts and
cherry-picks are merges here (`catalog.merges.state_merge`).

First, the merged state is made in the memory of this process: as a transaction that begins at the newest commit of the
branch and contains the merge. The checks read the state of this transaction. Then the merge is committed to the branch.
The commit requires that everything that the checks saw is unchanged: the names and contents of the branch, the
properties of the catalog (they decide how tables are merged), its checks, and the difference that the merge applies.
Otherwise the merge and its checks are repeated. A merge into an unprotected branch, or into a branch without checks, is
committed at once. If this branch has become protected and has checks by then, the commit is refused, and the merge is
repeated with the checks.

Manifests that a refused merge has written are deleted by `remove_orphans`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from polaris_spark.catalog.branches.checks import Check, checks_in
from polaris_spark.catalog.catalogs.catalog import Catalog
from polaris_spark.catalog.catalogs.references import head_name
from polaris_spark.catalog.merges.differences import changed_entities
from polaris_spark.catalog.merges.merge_steps import Difference, Merged
from polaris_spark.catalog.merges.state_merge import MergeStates
from polaris_spark.catalog.merges.transactions import Isolation, Transaction
from polaris_spark.catalog.rows import NAMES, PROPERTIES
from polaris_spark.commits.settings import PROTECTION
from polaris_spark.commits.state import CommitReader, Read, State, reading_state
from polaris_spark.errors import CheckFailedError, CommitFailedError

TRIES = 5
"""Maximum number of times that a merge is made and its checks are evaluated, if other commits keep changing the
branches."""

ReadDifference = Callable[[State], Difference]
"""A function that takes the state of a branch, and returns the difference to apply to it."""
MakeChange = Callable[[ReadDifference], MergeStates]
"""A function that returns the merge that applies a difference."""


class CheckOutcome(NamedTuple):
    """The result of evaluating a check."""

    check: str
    """Name of the check."""
    problem: str
    """Why the check does not hold; empty if it holds."""
    evaluated: bool = True
    """Whether the check was evaluated."""


class MergedState(NamedTuple):
    """The state of a branch after a merge that is not committed yet. It exists only in this process."""

    branch: str
    """Name of the branch."""
    state: str
    """Name of the state in this process (`catalog.branches.states`)."""
    catalog: Catalog
    """The catalog in this state. It cannot be changed."""
    before: CommitReader
    """The newest commit of the branch."""
    after: CommitReader
    """The merged state."""
    checks: list[Check]
    """The SQL checks of the branch."""
    label: str
    """Description of the merge, such as `merge dev` or `revert 42`."""

    @property
    def changes_something(self) -> bool:
        """Whether the merge changed namespaces, tables or views, so that the checks must hold. A merge without such
        changes only records that the branch now contains the commits of another branch."""
        before, after = self.before.commit, self.after.commit
        return bool(changed_entities(self.catalog.reader.read_shards, before, after))


class Evaluator(Protocol):
    """Evaluates the checks of protected branches."""

    @property
    def has_own_checks(self) -> bool:
        """Whether the evaluator has checks of its own, which apply to all protected branches in addition to each
        branch's checks."""
        ...

    def outcomes(self, merged: MergedState) -> list[CheckOutcome]:
        """Evaluate the checks of a branch and the evaluator's own checks, and return the outcome of each."""
        ...

    def not_evaluated(self, checks: Sequence[Check], reason: str) -> list[CheckOutcome]:
        """Return an outcome for each check in `checks` and each of the evaluator's own checks. Each outcome has
        `reason` as the reason why the check was not evaluated."""
        ...


class WithoutSpark:
    """Evaluator for a process without Spark. It cannot evaluate checks, so merges into protected branches with checks
    are refused."""

    has_own_checks = False

    def outcomes(self, merged: MergedState) -> list[CheckOutcome]:
        return self.not_evaluated(merged.checks, "it is an SQL query, which only Spark can evaluate")

    def not_evaluated(self, checks: Sequence[Check], reason: str) -> list[CheckOutcome]:
        return [CheckOutcome(check.name, reason, evaluated=False) for check in checks]


class _StaleChecksError(CommitFailedError):
    """The branch, or the difference that the merge applies, has changed since the checks were evaluated."""


class _Seen(NamedTuple):
    """What determines the merged state in which the checks of a branch were evaluated."""

    reads: list[Read]
    """The names and contents of the branch before the merge, the properties of the catalog, and the branch's checks."""
    difference: Difference
    """The difference that was merged."""


def merge_checked(
    catalog: Catalog, make: MakeChange, difference: ReadDifference, label: str, evaluator: Evaluator
) -> list[Merged]:
    """Commit a merge to the branch of a catalog. If the branch is protected, its checks must hold in the merged state.

    Args:
        difference: function that takes the state of the branch, and returns the difference to apply to it. Each call
            reads the other state again.
        label: description of the merge, such as `merge dev`.
    Raises:
        CheckFailedError: a check does not hold, or cannot be evaluated here.
        CommitFailedError: the branches were changed `TRIES` times while the checks were evaluated.
        MergeConflictError: both sides changed the same thing.
    """
    for _ in range(TRIES):
        seen = None
        if not catalog.in_transaction and _checks_apply(reading_state(catalog.head()), evaluator):
            with _merged(catalog, make, difference, label) as (merged, seen):
                if merged.changes_something:
                    _require_all(merged, evaluator.outcomes(merged))
        change = make(_as_seen(difference, seen))
        change.guard = _guard(seen, evaluator)
        try:
            return catalog.commit(change)
        except _StaleChecksError:
            continue
    raise CommitFailedError(
        f"{label} was not committed; nothing was changed. The branches were changed {TRIES} times while the checks "
        f"of branch {catalog.branch!r} were evaluated; try again later"
    )


def check_outcomes(
    catalog: Catalog, make: MakeChange, difference: ReadDifference, label: str, evaluator: Evaluator
) -> list[Merged]:
    """Return a row for each check that a merge would evaluate, with its outcome. Change nothing.

    Raises:
        MergeConflictError: both sides changed the same thing.
    """
    if not _checks_apply(reading_state(catalog.head()), evaluator):
        return []
    with _merged(catalog, make, difference, label) as (merged, _):
        return _rows(evaluator.outcomes(merged)) if merged.changes_something else []


def unevaluated(catalog: Catalog, evaluator: Evaluator, reason: str) -> list[Merged]:
    """Return a row for each check that a merge would evaluate, with the reason why it was not evaluated."""
    state = reading_state(catalog.head())
    if not _checks_apply(state, evaluator):
        return []
    return _rows(evaluator.not_evaluated(checks_in(state), reason))


def _rows(outcomes: list[CheckOutcome]) -> list[Merged]:
    verbs = {(True, True): "passed", (True, False): "failed"}
    return [
        Merged("check", one.check, verbs.get((one.evaluated, not one.problem), "not evaluated"), one.problem)
        for one in outcomes
    ]


def _require_all(merged: MergedState, outcomes: list[CheckOutcome]) -> None:
    failed: dict[tuple[bool, str], list[str]] = {}
    for one in outcomes:
        if one.problem or not one.evaluated:
            failed.setdefault((one.evaluated, one.problem), []).append(repr(one.check))
    if failed:
        told = "; ".join(_told(names, *what) for what, names in failed.items())
        raise CheckFailedError(
            f"{merged.label} is refused; nothing was changed. Branch {merged.branch!r} is protected; {told}"
        )


def _told(names: list[str], evaluated: bool, problem: str) -> str:  # noqa: FBT001  # a part of a key
    does, plural = ("does", "") if len(names) == 1 else ("do", "s")
    verb = f"{does} not hold" if evaluated else "cannot be evaluated"
    return f"check{plural} {', '.join(names)} {verb}: {problem}"


def _checks_apply(state: State, evaluator: Evaluator) -> bool:
    """Whether checks must hold before a merge into a branch."""
    return state.is_protected and (evaluator.has_own_checks or bool(checks_in(state)))


def _guard(seen: _Seen | None, evaluator: Evaluator) -> Callable[[State], None]:
    """Return a function for `MergeStates.guard`. It raises an error if the branch has changed since the checks were
    evaluated."""

    def require_seen(state: State) -> None:
        if seen is None:
            state.record_indexes(PROTECTION)
            stale = _checks_apply(state, evaluator)
        else:
            stale = not state.holds(seen.reads)
            state.reads.extend(seen.reads)
        if stale:
            raise _StaleChecksError("the branch was changed while its checks were evaluated")

    return require_seen


def _as_seen(difference: ReadDifference, seen: _Seen | None) -> ReadDifference:
    """Return a function that reads the difference again, and raises an error unless it equals the difference that was
    merged when the checks were evaluated."""
    if seen is None:
        return difference

    def read(view: State) -> Difference:
        fresh, known = difference(view), seen.difference
        if (fresh.changes, fresh.gone, fresh.restores) != (known.changes, known.gone, known.restores):
            raise _StaleChecksError("the other branch was changed while the checks were evaluated")
        # With these, the commit has the same ids of snapshots and locations of files as the state that was checked.
        return fresh._replace(now=known.now, unique=known.unique)

    return read


@contextmanager
def _merged(
    catalog: Catalog, make: MakeChange, difference: ReadDifference, label: str
) -> Iterator[tuple[MergedState, _Seen]]:
    """Carry out a merge in a private transaction, and yield the resulting state and what the merge read. The
    transaction is discarded at the end of the block, so nothing is committed."""
    principal, begun = make(difference).operation.principal, list[Transaction]()

    def made() -> _Seen:
        for earlier in begun:
            earlier.hide()
        begun[:] = [Transaction(catalog, Isolation.SNAPSHOT, catalog.head())]
        begun[0].show(begun[0].begin)
        found: list[Difference] = []

        def read(view: State) -> Difference:
            found.append(difference(view))
            return found[-1]

        change = make(read)
        change.onto_protected = True
        catalog.references.commit(head_name(catalog.row, begun[0].state), change)
        return _Seen(reading_state(begun[0].begin).record_indexes(NAMES, PROPERTIES, PROTECTION), found[-1])

    try:
        seen = catalog.loading(made, principal)
        [transaction] = begun
        after = transaction.head
        shown = catalog.on_branch(transaction.state).at(after, "a merge that is not committed")
        shown.bound = True
        checks = checks_in(reading_state(transaction.begin))
        yield (
            MergedState(catalog.branch, transaction.state, shown, transaction.begin, after, checks, label),
            seen,
        )
    finally:
        for transaction in begun:
            transaction.hide()
