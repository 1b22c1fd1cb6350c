"""Mutants of group commit across processes: each has one fault in how intents are published, decided or withdrawn."""

from __future__ import annotations

from polaris_spark.commits.applier import Applier
from polaris_spark.commits.attempts import Attempts
from polaris_spark.commits.decider import Decider
from polaris_spark.commits.handover import Handover
from polaris_spark.commits.intents import Intents
from polaris_spark.testing.schedules import Rates
from tests.simulation.mutants import Mutant, Patch
from tests.simulation.plan import MINUTE

CROWD = {"processes": 6, "nodes": 16, "names": ("main",), "keys": 20, "actions": 12, "registry": 0.0}
"""Plan with many processes that commit to one reference."""
_FAULTS = {**CROWD, "rates": Rates(busy=0.05, unheard=0.05, late=0.05, delay_ms=3.0, late_ms=(1.0, 2_000.0))}

INTENT_MUTANTS: dict[str, Mutant] = {
    "a request is applied though its operation was carried out": Mutant(
        (
            Patch(
                Applier,
                "_try_request",
                "if operation.id and self._done_before(applied, operation) is not None:",
                "if False:",
            ),
        ),
        {**_FAULTS, "keys": 2},
    ),
    "a request that fails undoes the change before it": Mutant(
        (
            Patch(Applier, "apply_request", "state.begin()\n", "\n"),
            Patch(Decider, "_carry", "applied.state.begin()", "pass"),
            Patch(
                Applier,
                "_try_request",
                "left = self._turn_ms",
                "if operation.id[-1] % 2: raise RequestError\n    left = self._turn_ms",
            ),
        ),
        {**CROWD, "keys": 2},
    ),
    "the outcome of a request is not looked for": Mutant(
        (
            Patch(Intents, "_found", "if part.request", "if False"),
            Patch(Intents, "decide", "<= SLOT_COMMITS", "<= 1"),
        ),
        {**CROWD, "keys": 2, "processes": 12, "actions": 16},
    ),
    "a commit leaves the slot of an intent that it carried out": Mutant(
        (
            Patch(
                Decider,
                "_carry",
                "return Slot(intent.following, number, slot.following, bytes(outcomes))",
                "return slot",
            ),
        ),
        CROWD,
    ),
    "an intent is carried out though what its change read has changed": Mutant(
        (Patch(Applier, "redo", " or not state.holds(memo.reads)", ""),),
        CROWD,
    ),
    "an intent is carried out though its operation was": Mutant(
        (
            Patch(
                Applier,
                "redo",
                "or state.lookup(OPERATIONS, operation.key) is not None",
                "or False",
            ),
        ),
        _FAULTS,
    ),
    "an intent is carried out though a fence was set": Mutant(
        (Patch(Applier, "redo", "memo.fence != state.base.head.fence or ", ""),),
        {**CROWD, "upkeep": 0.15},
    ),
    "the changes of others are added twice to one commit": Mutant(
        (Patch(Attempts, "_applied", "or applied.decision is not None\n", "\n"),),
        _FAULTS,
    ),
    "a process commits its changes without looking whether its intent was carried out": Mutant(
        (
            Patch(
                Attempts,
                "_handed_over",
                "tried = run.published is not None and run.attempt > 0\n",
                "tried = run.published is not None and run.attempt > 0\n"
                "    if tried:\n"
                "        run.attempt, run.fresh = 0, self._heads.read()\n"
                "        return False\n",
            ),
        ),
        _FAULTS,
    ),
    "a process answers before its swap": Mutant(
        (
            Patch(
                Attempts,
                "_go_on",
                "outcome = publication.publish()\n",
                "if run.applied is not None and run.applied.decision is not None:\n"
                "        self._intents.committed(run.applied.decision, publication)\n"
                "    outcome = publication.publish()\n",
            ),
        ),
        {**_FAULTS, "messages": 0.0},
    ),
    "the outcome of another intent is taken from an answer": Mutant(
        (Patch(Intents, "answer", "if slot.last == published.id)", "if slot.outcomes)"),),
        {**CROWD, "messages": 0.0},
    ),
    "an answer is written with the changes of another intent": Mutant(
        (
            Patch(
                Decider,
                "_answer",
                "decision.requested.get(intent, {})",
                "next(iter(decision.requested.values()))",
            ),
        ),
        {**CROWD, "keys": 1},
    ),
    "a refused change leaves its intent": Mutant(
        (
            Patch(
                Attempts,
                "_publication",
                "if run.published is not None:\n            self._withdraw",
                "if False:\n            self._withdraw",
            ),
        ),
        CROWD,
        most=120,
    ),
    "an intent is withdrawn without a change of the row": Mutant(
        (Patch(Intents, "withdrawn", "head if head.sealed or", "head if True or"),),
        CROWD,
    ),
    "the intent of another process is carried out in a slot": Mutant(
        (
            Patch(
                Decider,
                "decided",
                "row = found.get(slot.following)",
                "row = found.get(slot.following) or next(iter(found.values()), None)",
            ),
        ),
        {**CROWD, "messages": 0.0},
    ),
    "a dropped slot means that the intent was not carried out": Mutant(
        (
            Patch(Intents, "_found", "found[number] = []", "pass"),
            Patch(Intents, "decide", "<= SLOT_COMMITS", "<= 1"),
        ),
        {**CROWD, "rates": Rates(stall=0.02, stall_ms=(20.0, 200.0), delay_ms=3.0)},
    ),
    "the intent of a process that died is carried out at any time": Mutant(
        (Patch(Decider, "_carry", "> self._lifetime_ms", "> float('inf')"),),
        {
            **CROWD,
            "rates": Rates(death=0.01, delay_ms=3.0),
            "gaps": (20 * MINUTE,) * 4,
            "skews": (0.0, 5.0, -5.0),
            "upkeep": 0.0,
        },
    ),
    "a commit of its own leaves the intent of a process in its slot": Mutant(
        (Patch(Intents, "decide", "if not own or published is not None or all(", "if not own or all("),),
        CROWD,
    ),
    "a process waits without end for others to decide its intent": Mutant(
        (
            Patch(
                Handover,
                "wait",
                "if only_look or others > MOST_OTHERS or now >= min(since + patience, deadline):",
                "if only_look:",
            ),
        ),
        {**CROWD, "threads": 1, "think_ms": 0.0, "gaps": (0.0,) * 4, "rates": Rates(delay_ms=3.0)},
    ),
}
