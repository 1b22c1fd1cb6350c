"""Mutants of branches, merges, transactions and staging areas, each with one fault."""

from __future__ import annotations

from types import MappingProxyType

from polaris_spark.catalog.branches import branches
from polaris_spark.catalog.catalogs import catalog
from polaris_spark.catalog.drops import undrop
from polaris_spark.catalog.merges import entity_merge, merges, staging, state_merge, table_merge, transactions
from polaris_spark.maintenance import sweep_roots
from polaris_spark.maintenance.expiry import run
from polaris_spark.testing.schedules import Rates
from tests.simulation.mutants import Mutant, Patch
from tests.simulation.plan import MINUTE, SECOND
from tests.simulation.refreshes.mutants import CALM

SWEEPING = MappingProxyType({**CALM, "upkeep": 0.2, "grace_ms": 0.0, "retention_ms": 0.0})
"""Plan with frequent sweeps, without retention and grace period."""

EXPIRING = MappingProxyType(
    {
        **CALM,
        "rates": Rates(delay_ms=3.0, stall=0.02, stall_ms=(50.0, SECOND)),
        "think_ms": 0.0,
        "processes": 4,
        "actions": 12,
        "weights": tuple(
            {
                **dict.fromkeys(("transact", "stage", "commit_staged", "tag", "drop", "undrop", "read"), 0),
                **dict.fromkeys(("drop_table", "undrop_table", "create_table"), 0),
                "append": 40,
                "merge": 40,
                "expire": 10,
                "pick": 10,
                "write": 4,
                "create": 3,
            }.items()
        ),
    }
)
"""Plan in which snapshots often expire while branches are merged."""

BRANCH_MUTANTS: dict[str, Mutant] = {
    "a branch begins without an id of its own": Mutant(
        (Patch(branches, "_create", "first=_begin", "first=None"),), CALM
    ),
    "a merge begins at the newest commit that either branch has": Mutant(
        (
            Patch(
                merges,
                "merge_base",
                "min(a.newest[branch], b.newest[branch])",
                "max(a.newest[branch], b.newest[branch])",
            ),
        ),
        CALM,
    ),
    "a merge brings nothing": Mutant(
        (Patch(state_merge.MergeStates, "apply", "merged = run.merge()", "merged = []"),), CALM
    ),
    "a transaction writes its objects under their old ids after a sweep": Mutant(
        (
            Patch(
                transactions,
                "_difference",
                "renews=view.base.head.fence != begin.head.fence",
                "renews=False",
            ),
        ),
        SWEEPING,
    ),
    "a transaction is committed as if nothing came after its beginning": Mutant(
        (
            Patch(
                state_merge.MergeStates,
                "apply",
                "prepared.begun and state.holds([begun])",
                "prepared.begun",
            ),
        ),
        CALM,
    ),
    "a sweep forgets tags": Mutant(
        (
            Patch(
                sweep_roots._Fencing,
                "roots",
                "if head is None or not head.commit:",
                "if '/tags/' in row_name:\n            continue\n        if head is None or not head.commit:",
            ),
        ),
        SWEEPING,
    ),
    "a merge drops a table that the other branch has changed": Mutant(
        (
            Patch(
                entity_merge.MergeRun,
                "_step",
                'raise EntityConflict(f"the other state removed it, and this branch {_told(base, ours)}")',
                'return Step(id, ours, None, change, "removed")',
            ),
        ),
        CALM,
    ),
    "a table is restored from its oldest drop": Mutant(
        (
            Patch(
                undrop,
                "_drop_of",
                "groupby(_drops(view, catalog), ",
                "groupby(reversed(list(_drops(view, catalog))), ",
            ),
        ),
        CALM,
    ),
    "a rebased append does not say of which snapshot it is a copy": Mutant(
        (Patch(table_merge._Merge, "_rebase", "{SOURCE_SNAPSHOT: str(source_of(snapshot))}", "{}"),),
        CALM,
    ),
    "a merge brings only the newest append": Mutant(
        (
            Patch(
                table_merge._Merge,
                "_lacking",
                "in other[first:]",
                "in other[-1:]",
            ),
        ),
        CALM,
    ),
    "expiry does not fence the other branches": Mutant(
        (Patch(run.ExpiryRun, "_fence_other_branches", "references.fence(registered.row_name)", "pass"),),
        EXPIRING,
        most=120,
        first=6,
    ),
    "a merged table is older than its snapshots": Mutant(
        (Patch(table_merge._Merge, "__init__", "if not restores:", "if False:"),),
        {**CALM, "skews": (0.0, 20 * MINUTE)},
    ),
    "changes of another branch are committed to main": Mutant(
        (Patch(catalog.Catalog, "on_branch", "head_name(self.row, branch)", "head_name(self.row)"),), CALM
    ),
    "no commit can be picked": Mutant(
        (
            Patch(
                merges,
                "cherry_pick",
                "at = catalog_at(catalog, commit)",
                'raise BadRequestError("it cannot be picked")',
            ),
        ),
        CALM,
    ),
    "only the first change of a transaction takes effect": Mutant(
        (
            Patch(
                entity_merge.MergeRun,
                "take_over",
                "if step is not None:",
                "if step is not None and not self.steps:",
            ),
        ),
        CALM,
    ),
    "a serializable transaction does not look whether its reads have changed": Mutant(
        (Patch(state_merge.MergeStates, "apply", "_refuse_changed(state, prepared.reads)", "pass"),), CALM
    ),
    "a serializable transaction compares its reads with the newest state": Mutant(
        (
            Patch(
                transactions,
                "_reads",
                "reading_state(transaction.begin)",
                "reading_state(transaction.parent.head())",
            ),
        ),
        CALM,
    ),
    "appends of both sides always conflict": Mutant(
        (Patch(table_merge._Merge, "_append", 'if theirs["type"] != "branch" or', "if True or"),), CALM
    ),
    "a staging area is committed without its changes": Mutant(
        (
            Patch(
                staging,
                "commit_staged",
                "merged = merge_branch(onto, AREA + name, operation, options, staged=True)",
                "merged = []",
            ),
        ),
        CALM,
    ),
    "a session that stages writes to the branch itself": Mutant(
        (
            Patch(
                staging, "stage", "staged = catalog_at(catalog, area)", "staged = catalog_at(catalog, target)"
            ),
        ),
        CALM,
    ),
    "a staging area with changes counts as renewed": Mutant(
        (
            Patch(
                staging,
                "_renew",
                "return new_difference(staged, {})",
                "return new_difference(staged, {})._replace(ancestry=ancestry_of(theirs))",
            ),
        ),
        CALM,
    ),
    "a read of a branch does not look for newer commits": Mutant(
        (
            Patch(
                catalog.Catalog,
                "view",
                "self.head() if at is None",
                "self.references.open(self.reference)._heads.known() if at is None",
            ),
        ),
        CALM,
    ),
}
