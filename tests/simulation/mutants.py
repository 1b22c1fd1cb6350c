"""Mutants of the commit protocol: each has one fault, made by patches of the product's source text."""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from polaris_spark.commits import builder
from polaris_spark.commits.applier import Applier
from polaris_spark.commits.attempts import Attempts
from polaris_spark.commits.group import Group
from polaris_spark.commits.head_reader import HeadReader
from polaris_spark.commits.publication import Publication
from polaris_spark.commits.state import State
from polaris_spark.ids import IdGenerator
from polaris_spark.index import spill
from polaris_spark.system.leases import NodeLeases
from polaris_spark.system.registry import References
from polaris_spark.testing.schedules import Rates
from tests.simulation.plan import MINUTE, SECOND


class Patch(NamedTuple):
    """A replacement of text in a function of the product. The owner is the function's class or module."""

    owner: Any
    name: str
    old: str
    new: str
    also: tuple[str, str] = ("", "")
    """A second text to replace, and its replacement; empty strings for none."""


class Mutant(NamedTuple):
    """A broken protocol: its patches, and fixed fields of the plans with which the fault often has an effect."""

    patches: tuple[Patch, ...]
    plan: Mapping[str, Any] = MappingProxyType({})
    most: int = 60
    """Maximum number of seeds within which the fault must be found."""
    first: int = 0
    """The first seed that is tried. Of a fault that seldom has an effect, it is near a seed that shows it."""


@contextlib.contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    """Patch the product while the block runs."""
    with contextlib.ExitStack() as stack:
        for patch in mutant.patches:
            stack.enter_context(_patched(patch))
        yield


@contextlib.contextmanager
def _patched(patch: Patch) -> Iterator[None]:
    original = inspect.getattr_static(patch.owner, patch.name)
    text = textwrap.dedent(inspect.getsource(original))
    for old, new in ((patch.old, patch.new), patch.also):
        if old:
            assert text.count(old) == 1, f"{patch.name} has changed: {old!r} is not in it once"
            text = text.replace(old, new)
    module = sys.modules[original.__module__]
    scope: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{text}", "mutant", "exec")
    exec(code, vars(module), scope)
    setattr(patch.owner, patch.name, scope[patch.name])
    try:
        yield
    finally:
        setattr(patch.owner, patch.name, original)


def _module(cls: type) -> Any:
    return sys.modules[cls.__module__]


UNHEARD = Rates(unheard=0.15, late=0.05, delay_ms=2.0, late_ms=(1.0, 2_000.0))
STALLS = Rates(unheard=0.2, stall=0.05, stall_ms=(MINUTE, 3 * MINUTE), delay_ms=2.0)
_registry = _module(References)
_publishing = _module(Publication)
_group = _module(Group)

MUTANTS: dict[str, Mutant] = {
    "a swap is retried with a new version after an unknown outcome": Mutant(
        (
            Patch(
                Publication,
                "publish",
                "except OutcomeUnknownError as error:\n        self.cause = error",
                "except OutcomeUnknownError:\n        return Outcome.LOST",
            ),
        ),
        {"rates": UNHEARD},
    ),
    "the doubt of an unknown outcome is forgotten": Mutant(
        (
            Patch(
                Publication,
                "publish",
                "except OutcomeUnknownError as error:\n        self.cause = error",
                "except OutcomeUnknownError as error:\n        self.in_doubt, self.cause = doubted, error",
            ),
        ),
        {"rates": UNHEARD},
    ),
    "a conflict of a repeated swap is taken for not done": Mutant(
        (
            Patch(
                Publication,
                "publish",
                "return Outcome.COMMITTED if self._happened() else Outcome.LOST",
                "return Outcome.LOST",
            ),
        ),
        {"rates": UNHEARD},
    ),
    "an unknown outcome is guessed where history was trimmed": Mutant(
        (
            Patch(
                Publication,
                "_happened",
                "return ancestor(self._store, current, self.new.head.number) == self.new.head.commit",
                "return current.floor_number <= self.new.head.number "
                "and ancestor(self._store, current, self.new.head.number) == self.new.head.commit",
            ),
        ),
        {
            "rates": Rates(unheard=0.3, stall=0.3, stall_ms=(SECOND, 25 * SECOND), stall_before=0.0),
            "skews": (0.0,),
            "think_ms": 300.0,
            "retention_ms": 0.0,
            "upkeep": 0.4,
            "registry": 0.0,
            "reads": 0.0,
            "names": ("main",),
            "processes": 4,
            "threads": 1,
            "actions": 48,
        },
        most=1_000,
        first=270,
    ),
    "objects are deleted on failure": Mutant(
        (
            Patch(
                Publication,
                "publish",
                "return Outcome.IN_DOUBT if self.in_doubt",
                "self._store.backend.delete_objects(self._store.realm, self.rows)\n"
                "    return Outcome.IN_DOUBT if self.in_doubt",
            ),
        ),
        {"rates": UNHEARD},
    ),
    "a memoised result is reused though its input changed": Mutant(
        (Patch(State, "holds", "return all(self._same(read) for read in reads)", "return True"),),
        {"processes": 3, "keys": 3},
    ),
    "the swap comes before the rows are acknowledged": Mutant(
        (Patch(Publication, "publish", "self.cause = error\n        return Outcome.BUSY", "pass"),),
        {"rates": Rates(lost=0.1, partial=0.1), "transactional": False},
    ),
    "prepared rows older than a fence are reused": Mutant(
        (Patch(Applier, "_apply_one", "pending.prepared_fence != fence or ", ""),),
        {"upkeep": 0.3, "registry": 0.0, "processes": 4, "think_ms": 2.0},
    ),
    "a failed requirement is judged on a known head only": Mutant(
        (
            Patch(
                Attempts,
                "_publication",
                "if not applied.effects and applied.base is not run.fresh:",
                "if not applied.effects and run.attempt:",
            ),
        ),
        {"processes": 3, "registry": 0.0},
    ),
    "an operation id is not looked up": Mutant(
        (Patch(Applier, "_apply_one", "if before is not None:", "if False:"),)
    ),
    "a duplicate operation in one batch is applied twice": Mutant(
        (
            Patch(
                Applier,
                "_done_before",
                "if entry is None:",
                "if entry is None or entry.pointer == applied.entries_id:",
            ),
        ),
        {"threads": 3, "registry": 0.0, "think_ms": 0.0},
    ),
    "the effects of a failing change are kept": Mutant(
        (Patch(Applier, "apply", "state.undo()\n            pending.fail(error)", "pending.fail(error)"),),
        {"threads": 3, "registry": 0.0, "think_ms": 0.0},
    ),
    "who leaves while the commit is written hears that nothing was changed": Mutant(
        (Patch(_group, "_late", "if pending.batch is not None and pending.batch.sent:", "if False:"),),
        {"rates": STALLS, "threads": 3, "registry": 0.0, "think_ms": 0.0},
    ),
    "a commit is as late as its maker's clock says": Mutant(
        (Patch(builder, "next_time", "max(now_ms, parent.time + 1)", "now_ms"),),
        {"processes": 3},
    ),
    "a skip pointer names the wrong ancestor": Mutant(
        (
            Patch(
                builder,
                "child_pointers",
                "zeros - FIRST_SKIP + 1",
                "zeros - FIRST_SKIP + 2",
            ),
        ),
        {"registry": 0.0, "reads": 0.0, "names": ("main",), "actions": 12, "processes": 4},
    ),
    "a lease is taken without a margin for the one that runs out": Mutant(
        (
            Patch(
                NodeLeases,
                "acquire",
                "not found.value.released and found.value.end_ms > now",
                "not found.value.released and found.value.end_ms > now + 10 * 60_000",
            ),
            Patch(NodeLeases, "_taken", "found.value.end_ms if found else 0)", "0)"),
        ),
        {"gaps": (20 * MINUTE,) * 4, "nodes": 5, "processes": 4},
    ),
    "a node given back is taken from the last millisecond that was used": Mutant(
        (
            Patch(
                NodeLeases, "release", "id_time_ms(last_id) + 1 if last_id", "id_time_ms(last_id) if last_id"
            ),
        ),
        {"gaps": (40 * MINUTE,) * 4, "nodes": 5},
    ),
    "an id is made after the lease ended": Mutant(
        (
            Patch(
                IdGenerator,
                "_take",
                "while lease is None or ms + RENEW_MARGIN_MS >= lease.end_ms:",
                "while lease is None:",
            ),
        ),
        {"gaps": (40 * MINUTE,) * 4},
    ),
    "ids do not observe the head": Mutant(
        (Patch(IdGenerator, "observe", "if ms < self._ms:", "if ms:"),), {"processes": 3}
    ),
    "a sealed row is ignored": Mutant(
        (
            Patch(HeadReader, "adopt", "if head.sealed:", "if False:"),
            Patch(Applier, "begin", "if base.head.sealed:", "if False:"),
        ),
        {"registry": 0.2, "processes": 3},
    ),
    "a dropped reference is not sealed": Mutant(
        (Patch(References, "_seal", "head, sealed=True)", "head, sealed=False)"),),
        {"registry": 0.2, "processes": 3},
    ),
    "a reference comes back as it was created": Mutant(
        (
            Patch(
                References,
                "sealed_head",
                "return head",
                "return registered.first_head()",
            ),
        ),
        {"registry": 0.2},
    ),
    "what follows a registry commit fails as if nothing was changed": Mutant(
        (
            Patch(
                References,
                "_afterwards",
                "retried(self.clock, once, deadline_ms=self._settings.deadline_ms, rng=self._rng)",
                "once()",
                also=("except (TryAgainError, OutcomeUnknownError) as error:", "except () as error:"),
            ),
        ),
        {"registry": 0.3, "rates": Rates(busy=0.1)},
    ),
    "a merge of index shards drops an entry": Mutant(
        (
            Patch(
                spill,
                "joined_leaf",
                "right.keys, left.pointers + right.pointers, left.values + right.values",
                "right.keys[1:], left.pointers + right.pointers[1:], left.values + right.values[1:]",
            ),
        ),
        {"keys": 120, "quota": 300, "registry": 0.0},
    ),
}
