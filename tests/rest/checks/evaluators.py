"""Evaluation of checks by functions of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polaris_spark.catalog.branches.checks import Check
from polaris_spark.catalog.merges.checked_merge import CheckOutcome, MergedState
from polaris_spark.catalog.merges.merge_steps import Merged
from polaris_spark.catalog.merges.merges import Options, merge_branch
from polaris_spark.commits.change import Operation
from tests.rest.client import Client

ME = Operation(b"", "me")
TRUE = "SELECT true"


class Evaluator:
    """Evaluates checks by a function, and records the merged states."""

    has_own_checks = False

    def __init__(self, evaluate: Callable[[MergedState], str] = lambda _: "") -> None:
        self.evaluate = evaluate
        self.seen: list[MergedState] = []

    def outcomes(self, merged: MergedState) -> list[CheckOutcome]:
        self.seen.append(merged)
        return [CheckOutcome(check.name, self.evaluate(merged)) for check in merged.checks]

    def not_evaluated(self, checks: Sequence[Check], reason: str) -> list[CheckOutcome]:
        return [CheckOutcome(check.name, reason, evaluated=False) for check in checks]


def merge(client: Client, evaluator: Evaluator, source: str = "dev", **options: Any) -> list[Merged]:
    return merge_branch(client.session.catalog, source, ME, Options(evaluator=evaluator, **options))


def newest(client: Client) -> int:
    return client.session.catalog.head().head.commit


def number(client: Client) -> int:
    return client.session.catalog.head().head.number
