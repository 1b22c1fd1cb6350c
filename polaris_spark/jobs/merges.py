"""Procedures that compare states of a catalog, merge branches, and revert or cherry-pick commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from polaris_spark.access.needs import Need, Needs, On
from polaris_spark.errors import InputError
from polaris_spark.jobs.procedure import Call, Parameter, Procedure, columns

if TYPE_CHECKING:
    from polaris_spark.catalog.merges.merges import Options


def _diff(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.branches.states import reader_at
    from polaris_spark.catalog.merges.differences import described
    from polaris_spark.catalog.merges.merges import compare

    catalog = call.session.catalog
    before, after = (reader_at(catalog, arguments[name]) for name in ("from_state", "to_state"))
    for change in compare(catalog, before, after):
        call.check()
        row = described(change, catalog.view(after))
        if row is not None:
            yield row


def _merge(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.merges.merges import merge_branch

    operation, chosen = call.session.operation(), options(call, arguments)
    return merge_branch(call.session.catalog, arguments["source"], operation, chosen)


def _revert(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.merges.merges import revert

    first = arguments["commit"]
    last = arguments.get("to", first)
    return revert(call.session.catalog, first, last, call.session.operation(), options(call, arguments))


def _cherry_pick(call: Call, arguments: Mapping[str, Any]) -> Iterable[tuple[Any, ...]]:
    from polaris_spark.catalog.merges.merges import cherry_pick

    operation, chosen = call.session.operation(), options(call, arguments)
    return cherry_pick(call.session.catalog, arguments["commit"], operation, chosen)


def options(call: Call, arguments: Mapping[str, Any]) -> Options:
    """Return how to treat conflicts and how to evaluate checks, according to the arguments of the parameters in
    `CONFLICTS`.

    Raises:
        InputError: a strategy is unknown.
    """
    from polaris_spark.catalog.merges.merges import Options
    from polaris_spark.jobs.checks import ChecksOfCall

    strategies = {
        name: _strategy(text, f"the strategy of {name}")
        for name, text in arguments.get("strategies", {}).items()
    }
    strategy = _strategy(arguments.get("strategy", "fail"), "strategy")
    dry_run, keep_log = (bool(arguments.get(name, False)) for name in ("dry_run", KEEP_LOG.name))
    return Options(strategy, strategies, dry_run, ChecksOfCall(call), keep_log)


def _strategy(text: str | None, label: str) -> Any:
    from polaris_spark.catalog.merges.merge_steps import Strategy

    try:
        return Strategy((text or "").lower())
    except ValueError:
        raise InputError(f"{label} is {text!r}; it must be 'fail', 'ours' or 'theirs'") from None


CONFLICTS: Final = (
    Parameter(
        "strategy",
        "STRING",
        "what happens to tables and views whose changes conflict: `fail` (the default), `ours` (they stay as they are "
        "in the branch) or `theirs`",
    ),
    Parameter("strategies", "MAP<STRING,STRING>", "strategies of single tables and views, by their names"),
    Parameter(
        "dry_run",
        "BOOLEAN",
        "whether to change nothing, and show conflicts and the outcomes of checks as rows",
    ),
)
KEEP_LOG: Final = Parameter(
    "keep_log",
    "BOOLEAN",
    "whether the log of the branch also gets an entry for each change of the merged commits, with the action `merged`",
)
MERGED: Final = columns("kind STRING, name STRING, action STRING, detail STRING")


def reads(parameter: str = "", on: On = On.BRANCH, *, of: str = "") -> Needs:
    """Return the privileges that a procedure needs on a state to read all of it.

    A procedure that brings the content of another state to a branch needs them on that state. Otherwise, grants on the
    branch would allow reading the content of the other state. It also needs them on the branch, because conflicts show
    the names and values of both sides.

    Args:
        parameter: name of the parameter that names the state; empty for the session's branch and its earlier states.
        on: `On.AREA` if the parameter names a staging area, `On.STATE` if it can name any state
            (`catalog.branches.states`).
        of: name of the parameter that names the branch in whose history the state is looked up; empty for the session's
            branch.
    """
    return tuple(
        Need(one, on, parameter=parameter, of=of) for one in ("TABLE_READ_DATA", "VIEW_READ_PROPERTIES")
    )


DIFF = Procedure(
    name="diff",
    needs=(Need("CATALOG_READ_LOG", On.CATALOG),),
    comment="Compare two states of the catalog: which namespaces, tables and views were added, removed, renamed or "
    "changed, and what changed in them.",
    parameters=(
        Parameter(
            "from_state",
            "STRING",
            "the earlier state: a branch, a commit or time of the session's branch, or `<branch>#<commit or time>`",
            required=True,
        ),
        Parameter("to_state", "STRING", "the later state", required=True),
    ),
    columns=columns(
        "kind STRING, name STRING, change STRING, old_name STRING, snapshots_added BIGINT, "
        "rows_added BIGINT, files_added BIGINT, details MAP<STRING,STRING>"
    ),
    run=_diff,
    over_http=True,
    only_reads=True,
)
MERGE = Procedure(
    name="merge",
    needs=(Need("BRANCH_MERGE", On.BRANCH), *reads(), *reads("source")),
    comment="Merge a branch into another branch, in one commit.",
    parameters=(
        Parameter(
            "source", "STRING", "name of the branch to merge into the branch of the session", required=True
        ),
        *CONFLICTS,
        KEEP_LOG,
    ),
    columns=MERGED,
    run=_merge,
    uses_spark=True,
    queries=True,
    by_sql=True,
    over_http=True,
)
REVERT = Procedure(
    name="revert",
    needs=(Need("BRANCH_MERGE", On.BRANCH), *reads()),
    comment="Undo commits of a branch by a new commit.",
    parameters=(
        Parameter("commit", "STRING", "the commit, by number, id or time", required=True),
        Parameter("to", "STRING", "the last commit, to undo several; by default, only `commit` is undone"),
        *CONFLICTS,
    ),
    columns=MERGED,
    run=_revert,
    uses_spark=True,
    queries=True,
    by_sql=True,
    over_http=True,
)
CHERRY_PICK = Procedure(
    name="cherry_pick",
    needs=(Need("BRANCH_MERGE", On.BRANCH), *reads(), *reads("commit", On.STATE)),
    comment="Make the changes of one commit of another branch.",
    parameters=(
        Parameter("commit", "STRING", "the commit, as `<branch>#<number, id or time>`", required=True),
        *CONFLICTS,
    ),
    columns=MERGED,
    run=_cherry_pick,
    uses_spark=True,
    queries=True,
    by_sql=True,
    over_http=True,
)
