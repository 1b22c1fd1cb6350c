"""Mutants of branches, merges, transactions and staging areas, each with one fault."""

from __future__ import annotations

from types import MappingProxyType

from polaris_spark.catalog import branches, merges, state_merge, transactions
from polaris_spark.maintenance import sweep_roots
from tests.simulation.mutants import Mutant, Patch
from tests.simulation.refreshes.mutants import CALM

SWEEPING = MappingProxyType({**CALM, "upkeep": 0.2, "grace_ms": 0.0, "retention_ms": 0.0})
"""Plan with frequent sweeps, without retention and grace period."""

BRANCH_MUTANTS: dict[str, Mutant] = {
    "a branch begins without an id of its own": Mutant(
        (Patch(branches, "_create_branch", "first=_begin", "first=None"),), CALM
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
}
