"""Mutants of the sweep, each with one fault."""

from __future__ import annotations

from types import MappingProxyType

from polaris_spark.maintenance import log_archive, sweep, sweep_roots, trim
from polaris_spark.system import clocks
from polaris_spark.system.clocks import StoreClock
from polaris_spark.system.registry import References
from polaris_spark.testing.schedules import Rates
from tests.simulation.mutants import Mutant, Patch
from tests.simulation.plan import HOUR, MINUTE, SECOND

_Fencing = sweep_roots._Fencing

BUSY = MappingProxyType(
    {
        "rates": Rates(stall=0.05, stall_ms=(20.0, 3 * SECOND), delay_ms=2.0),
        "gaps": (SECOND,) * 4,
        "actions": 16,
        "think_ms": 10.0,
        "transactional": False,
        "grace_ms": 0.0,
        "retention_ms": 0.0,
        "upkeep": 0.3,
        "registry": 0.2,
        "processes": 4,
        "names": ("main", "branch", "other"),
        "skews": (0.0,),
        "ahead": 0.0,
    }
)
"""Plan with very frequent sweeps and stalls, and without retention and grace period."""

CLOCKS_AHEAD = MappingProxyType(
    {"ahead": 0.3, "skews": (0.0,), "upkeep": 0.3, "grace_ms": HOUR, "retention_ms": HOUR, "processes": 4}
)
"""Plan in which clocks are temporarily years ahead."""

SLEEPS = Rates(stall=0.02, stall_ms=(SECOND, 2 * HOUR), delay_ms=2.0)

SWEEP_MUTANTS: dict[str, Mutant] = {
    "no reference is fenced": Mutant(
        (Patch(_Fencing, "_close", "references.fence(registered.row_name)", "pass"),), BUSY
    ),
    "the registry is not fenced": Mutant(
        (Patch(_Fencing, "run", "references.fence(ROOT)", "pass"),),
        {**BUSY, "registry": 0.6, "upkeep": 0.5, "think_ms": 2.0},
    ),
    "only grace keeps what is on its way": Mutant(
        (
            Patch(_Fencing, "_close", "references.fence(registered.row_name)", "pass"),
            Patch(_Fencing, "run", "references.fence(ROOT)", "pass"),
        ),
        {
            **BUSY,
            "rates": Rates(stall=0.05, stall_ms=(SECOND, 2 * HOUR), delay_ms=2.0),
            "grace_ms": MINUTE,
            "retention_ms": MINUTE,
            "gaps": (MINUTE,) * 4,
            "reads": 0.0,
            "registry": 0.6,
        },
    ),
    "a floor is raised before the log is archived": Mutant(
        (
            Patch(
                trim,
                "_trim_one",
                "archive_log(references, name, at, before=floor.number, operation=operation)",
                "_raise(committer, floor)\n"
                "                archive_log(references, name, at, before=floor.number, operation=operation)",
            ),
        ),
        {**BUSY, "registry": 0.6},
    ),
    "a trim removes what another trim archived": Mutant(
        (
            Patch(
                log_archive._Add,
                "apply",
                "if is_same and new.keys() <= after.keys():",
                "if new.keys() == after.keys():",
                ("if is_same else new", "if not new else new"),
            ),
        ),
        {**BUSY, "registry": 0.6},
    ),
    "dropped references are not roots": Mutant(
        (
            Patch(
                _Fencing,
                "roots",
                "found += history(self._references.store, head, floor)",
                "found += history(self._references.store, head, floor) if not head.sealed else array('q')",
            ),
        ),
        {**BUSY, "rates": SLEEPS, "grace_ms": HOUR, "gaps": (20 * MINUTE,) * 4, "think_ms": 2.0},
    ),
    "a registration ends before its row is sealed": Mutant(
        (Patch(References, "end", "self._seal(registered)", "pass"),), {**BUSY, "registry": 0.6}
    ),
    "history is not a root": Mutant(
        (Patch(sweep_roots, "history", "while number > floor:", "while False:"),),
        {**BUSY, "retention_ms": HOUR},
    ),
    "a job that deletes goes by any clock": Mutant(
        (Patch(StoreClock, "refuse_deleting", "not clock_is_right", "False"),), CLOCKS_AHEAD
    ),
    "a clock is refused that lies where nobody noted a time": Mutant(
        (Patch(clocks, "_refuse_behind", "start - BEHIND_MS < now < end - FAR_MS", "False"),), CLOCKS_AHEAD
    ),
    "marking ends at a level": Mutant(
        (Patch(sweep, "_marked", 'engine.closure(start, pointed_to, "marking")', "start"),),
        BUSY,
    ),
}
