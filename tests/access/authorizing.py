"""Authorizers of tests, and how a process gets them: a settings file, and entry points of an installed package."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from polaris_spark.access import securables
from polaris_spark.access.authorizers import Authorizer, Question, Securable
from polaris_spark.access.decisions import VARIABLE
from polaris_spark.access.rules import Rules
from polaris_spark.catalog.rows import NAMESPACE, TABLE, VIEW
from polaris_spark.rest.permissions import Named, Permissions, knows_catalog
from tests.access.world import World

_KINDS = {"namespace": NAMESPACE, "table": TABLE, "view": VIEW}

AUTHORIZERS: dict[str, Authorizer] = {}
"""Authorizers of this process, by the setting `key` of the type `given`."""


def given(settings: dict[str, object]) -> Authorizer:
    """Factory of the entry point `given`."""
    return AUTHORIZERS[str(settings["key"])]


def settings(folder: Path, monkeypatch: pytest.MonkeyPatch, **authorizers: dict[str, Any]) -> Path:
    """Write the settings of authorizers to a new file, and let this process use it."""
    path = folder / f"authorizers-{len(list(folder.glob('authorizers-*')))}.json"
    path.write_text(json.dumps({"authorizers": authorizers}))
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the entry point `given` be found, as that of an installed package."""
    metadata = folder / "given-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: given\nVersion: 1\n")
    points = f"[polaris_spark.authorizers]\ngiven = {__name__}:given\n"
    (metadata / "entry_points.txt").write_text(points)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


class Deciding:
    """An authorizer that decides by a function, and records the questions."""

    def __init__(self, allows: Callable[[Question, Securable], Any]) -> None:
        self._allows = allows
        self.questions: list[Question] = []

    def decide(self, question: Question, timeout_seconds: float) -> Sequence[bool]:
        assert timeout_seconds > 0
        self.questions.append(question)
        return [self._allows(question, one) for one in question.securables]


class Mirror(Deciding):
    """An authorizer that decides as the grants and owners of a realm say."""

    def __init__(self, world: World) -> None:
        super().__init__(self._decide)
        self._session = world.root.session

    def _decide(self, question: Question, one: Securable) -> bool:
        rules = Rules(self._session.access.required().head)
        rules.authorizer = None
        catalog = self._session.catalog
        roles = frozenset(question.roles)
        subject = rules.subject(question.principal, catalog.context.clock.now_ms(), roles, rotating=True)
        if one.kind == "realm" or one.catalog != catalog.name:
            return subject.may(question.privilege, (securables.REALM,))
        if one.kind in ("catalog", "branch"):
            chain = (securables.catalog(catalog.row.entity_id), securables.REALM)
            if question.privilege == "CATALOG_LIST" and knows_catalog(rules, subject, catalog.row):
                return True
            if one.kind == "branch":
                chain = (securables.branch(catalog.row.entity_id, one.branch), *chain)
            return subject.may(question.privilege, chain) or rules.owns(
                subject.name, question.privilege, chain
            )
        if one.branch:
            catalog = catalog.on_branch(one.branch)
        head = catalog.head()
        permissions = Permissions(rules, subject, catalog, head, head)
        named = Named(one.namespace, one.name, _KINDS[one.kind])
        place = permissions.place(named)
        if question.privilege == f"{one.kind.upper()}_LIST" and permissions.sees(named, place):
            return True
        return permissions.may(question.privilege, place)
