"""Sequences of requests that both sides commit, and comparisons of the results."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from tests.differential.exemptions import exempt
from tests.differential.requests import Request
from tests.differential.sides import Ours, Outcome, Theirs
from tests.differential.table_requests import TableRequests, WideTableRequests
from tests.differential.view_requests import ViewRequests

AHEAD = 8
"""Sequences that are sent before the answers to the first are read."""


class Sequence(NamedTuple):
    """Requests to one table or view, and the outcomes of this package."""

    seed: str
    kind: str
    requests: list[Request]
    outcomes: list[Outcome]


class Difference(NamedTuple):
    """The first request of a sequence that has different outcomes on the two sides."""

    seed: str
    step: int
    problem: str
    prefix: list[Request]
    ours: Outcome
    theirs: Outcome

    def __str__(self) -> str:
        accepted = [json.dumps(request._asdict(), ensure_ascii=False) for request in self.prefix]
        return "\n".join(
            [
                f"seed {self.seed}, request {self.step}: {self.problem}",
                *accepted,
                f"ours:   {_shown(self.ours)}",
                f"theirs: {_shown(self.theirs)}",
            ]
        )


class Tally(NamedTuple):
    """Counts of the comparisons."""

    sequences: int
    requests: int
    accepted: int
    exempted: Counter[str]
    differences: list[Difference]


def sequence(seed: str, *, wide: bool = False) -> Sequence:
    """The sequence of a seed, which this package has committed.

    Args:
        wide: of a table with hundreds of tags and properties.
    """
    rng = Random(seed)
    kind = "view" if rng.random() < 0.2 and not wide else "table"
    tables = WideTableRequests if wide else TableRequests
    maker = ViewRequests(rng) if kind == "view" else tables(rng)
    ours = Ours(kind)
    requests = [maker.first()]
    outcomes = [ours.answer(requests[0])]
    metadata = outcomes[0].metadata
    if metadata is None:
        return Sequence(seed, kind, requests, outcomes)
    for _ in range(rng.randint(5, 40)):
        request = maker.next(metadata)
        requests.append(request)
        outcomes.append(ours.answer(request))
        metadata = outcomes[-1].metadata or metadata
    return Sequence(seed, kind, requests, outcomes)


def compare(theirs: Theirs, seeds: Iterator[str], *, wide: bool = False, most: int = 5) -> Tally:
    """Commit the sequences of some seeds on both sides. Stop after several differences."""
    waiting: deque[Sequence] = deque()
    exempted: Counter[str] = Counter()
    found: list[Difference] = []
    sequences = requests = accepted = 0
    for seed in seeds:
        one = sequence(seed, wide=wide)
        theirs.send(one.kind, one.requests)
        waiting.append(one)
        sequences += 1
        requests += len(one.requests)
        accepted += sum(not outcome.error for outcome in one.outcomes)
        if len(waiting) > AHEAD:
            found += _differences(waiting.popleft(), theirs, exempted)
        if len(found) >= most:
            break
    while waiting:
        found += _differences(waiting.popleft(), theirs, exempted)
    return Tally(sequences, requests, accepted, exempted, found)


def _differences(one: Sequence, theirs: Theirs, exempted: Counter[str]) -> list[Difference]:
    """Return the first difference of a sequence that is not exempt, if any."""
    found: list[Difference] = []
    ended = False
    for step, ours in enumerate(one.outcomes):
        answer = theirs.answer()
        if ended:
            continue
        problem = difference(ours, answer)
        if not problem:
            continue
        name = exempt(one.requests[step], ours, answer, problem)
        if name is not None:
            exempted[name] += 1
            ended = bool(ours.error) != bool(answer.error) or not ours.error
            continue
        ended = True
        found.append(Difference(one.seed, step, problem, _minimal(one, step), ours, answer))
    return found


def _minimal(one: Sequence, step: int) -> list[Request]:
    """Return the accepted requests before a difference, and the request with the difference."""
    kept = [
        request
        for request, outcome in zip(one.requests[:step], one.outcomes, strict=False)
        if not outcome.error
    ]
    return [*kept, one.requests[step]]


def difference(ours: Outcome, theirs: Outcome) -> str:
    """Describe how two outcomes differ; empty if they are equal."""
    if ours.error or theirs.error:
        same = _kind(ours.error) == _kind(theirs.error)
        return "" if same else f"error {ours.error!r} against {theirs.error!r}"
    return _json_difference(normal(ours.metadata), normal(theirs.metadata), "")


_ANSWERED = {
    "IllegalArgumentException": "bad request",
    "ValidationException": "bad request",
    "RetryableValidationException": "CommitFailedException",
}
"""What a REST server makes of Java's exceptions, where several become one."""


def _kind(error: str) -> str:
    return _ANSWERED.get(error, error)


def normal(metadata: Any) -> Any:
    """Metadata without nulls, and without an order where Iceberg keeps a set: statistics and identifier fields."""
    if isinstance(metadata, dict):
        made = {name: normal(value) for name, value in metadata.items() if value is not None}
        for name in ("statistics", "partition-statistics"):
            if isinstance(made.get(name), list):
                made[name] = sorted(made[name], key=lambda file: file["snapshot-id"])
        if "identifier-field-ids" in made:
            made["identifier-field-ids"] = sorted(made["identifier-field-ids"])
        return made
    return [normal(item) for item in metadata] if isinstance(metadata, list) else metadata


def _json_difference(one: Any, other: Any, path: str) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(set(one) | set(other)):
            if name not in one or name not in other:
                return f"{path}.{name} only {'theirs' if name in other else 'ours'}"
            inner = _json_difference(one[name], other[name], f"{path}.{name}")
            if inner:
                return inner
        return ""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next((d for i, (a, b) in pairs if (d := _json_difference(a, b, f"{path}[{i}]"))), "")
    return "" if type(one) is type(other) and one == other else f"{path}: {_cut(one)} against {_cut(other)}"


def _cut(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:300]


def _shown(outcome: Outcome) -> str:
    return (
        f"{outcome.error}: {outcome.message}"
        if outcome.error
        else json.dumps(outcome.metadata, ensure_ascii=False)
    )
