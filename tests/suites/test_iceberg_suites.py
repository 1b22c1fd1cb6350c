"""Iceberg's own suites of catalogs, run by Maven against ours over the bridge and over HTTP (by Iceberg's own client),
with and without metadata files, and on a branch other than main."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suites.reports import Outcome, outcome_of

SHIM = Path(__file__).parents[2] / "jvm-shim"

pytestmark = [pytest.mark.suites, pytest.mark.timeout(3_000)]  # the first one waits for all of them

SUITES = {
    f"{kind}{how}Suite": tests
    for kind, tests in (("Catalog", 106), ("View", 51))
    for how in ("EveryCommit", "EveryCommitHttp", "Never", "NeverHttp", "BranchHttp")
}
"""How many tests each suite has, so that none can get lost."""

EMPTY_NAMESPACE = {
    "createAndDropEmptyNamespace",
    "listNamespacesWithEmptyNamespace",
    "listTablesInEmptyNamespace",
    "listViewsInEmptyNamespace",
    "namespacePropertiesOnEmptyNamespace",
}
"""What Iceberg skips for its own REST catalog, too: the protocol's paths cannot name the empty namespace."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return the outcome of each suite from Surefire's reports."""
    copy = tmp_path_factory.mktemp("suites") / "jvm-shim"
    shutil.copytree(SHIM, copy, ignore=shutil.ignore_patterns("target"))
    command = ["mvn", "-q", "-B", "-Psuites", "test", f"-Dpolaris.python={sys.executable}"]
    ran = subprocess.run(command, cwd=copy, text=True, capture_output=True, check=False)
    reports = sorted((copy / "target" / "surefire-reports").glob("*.xml"))
    assert reports, f"'{' '.join(command)}' ran no suite:\n{ran.stdout[-10_000:]}{ran.stderr[-10_000:]}"
    return {path.stem.rsplit(".", 1)[-1]: outcome_of(path) for path in reports}


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_of_iceberg_passes(outcomes: dict[str, Outcome], suite: str) -> None:
    outcome = outcomes[suite]
    assert outcome.failed == {}
    assert len(outcome.run) == SUITES[suite]
    assert set(outcome.skipped) <= EMPTY_NAMESPACE
