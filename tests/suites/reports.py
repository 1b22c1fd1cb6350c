"""Reports of test runs in JUnit's XML format, as Surefire and pytest write them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Outcome(NamedTuple):
    """The names of a suite's tests, by result."""

    run: list[str]
    failed: dict[str, str]
    """With the message of the failure."""
    skipped: list[str]


def outcome_of(report: Path) -> Outcome:
    """Return the outcome in a report."""
    outcome = Outcome([], {}, [])
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.attrib["name"]
        outcome.run.append(name)
        if case.find("skipped") is not None:
            outcome.skipped.append(name)
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                outcome.failed[name] = str(found.get("message"))
    return outcome
