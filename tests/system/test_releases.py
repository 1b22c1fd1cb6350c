"""Two releases use one store: the present one, and one that is built from an earlier commit of this repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.releases import BEFORE_CHECKS, BEFORE_INTENTS, PRESENT, checkout
from tests.stores import SHARED, StoreOn, databases

_WORK = """
import json, sys
from tests.rest.client import connect, identifier, path, rename, set_properties, table, view_request

store, warehouse, me, rounds = sys.argv[1:]
client = connect(store, warehouse)
if client.send("GET", path("db")).status == 404:
    client.namespace("db")
    client.create("shared")
for number in range(int(rounds)):
    name = f"{me}{number}"
    client.create(f"{name}-kept", properties={"by": me})
    client.create(f"{name}-dropped")
    client.ok("DELETE", table(f"{name}-dropped"))
    client.ok("POST", "v1/tables/rename", rename(f"{name}-kept", f"{name}-renamed"))
    client.ok("POST", path("db") + "/views", view_request(f"{name}-view"))
    while client.commit("shared", set_properties(**{name: "done"})).status == 409:
        pass
shown = {
    name: client.load(name)["metadata"]["properties"].get("by") for name in client.names("db") if name != "shared"
}
shared = client.load("shared")["metadata"]["properties"]
done = sorted(name for name, value in shared.items() if value == "done")
print(json.dumps({"tables": shown, "views": sorted(client.names("db", kind="views")), "done": done}))
client.session.close()
"""

_COMMAND = "from polaris_spark.cli.app import main; main()"

_SWEEP = ("--no-spark", "--no-dry-run", "--property", "idempotency-key-lifetime=0s", "--retention", "0s")


class Release:
    """A release, given by its checkout, whose processes use the store `uri`."""

    def __init__(self, folder: Path, uri: str, warehouse: Path) -> None:
        self._folder, self._uri, self._warehouse = folder, uri, warehouse

    def start(self, me: str, rounds: int) -> subprocess.Popen[str]:
        """Start a process that makes changes whose names begin with `me`, and prints all that it then finds."""
        return self._start(_WORK, self._uri, str(self._warehouse), me, str(rounds))

    def work(self, me: str, rounds: int = 1) -> Any:
        """Do what `start` does, and return what the process found."""
        return found(self.start(me, rounds))

    def command(self, *words: str) -> tuple[int, str]:
        """Run a command on the store, and return its exit code and output."""
        process = self._start(_COMMAND, *words[:2], self._uri, *words[2:])
        out, error = process.communicate(timeout=120)
        return process.returncode, out + error

    def sweep(self) -> str:
        """Delete all rows that are not needed, however new they are, and return the output."""
        code, out = self.command("maintain", "sweep", *_SWEEP, "--grace", "0s")
        assert code == 0, out
        return out

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(self._folder)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def found(process: subprocess.Popen[str]) -> Any:
    """Return what a process of `Release.start` found."""
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return json.loads(out)


def expected(*done: tuple[str, int]) -> Any:
    """Return what a process must find after processes have worked, given as (name, rounds)."""
    names = [(f"{me}{number}", me) for me, rounds in done for number in range(rounds)]
    return {
        "tables": {f"{name}-renamed": me for name, me in names},
        "views": sorted(f"{name}-view" for name, _ in names),
        "done": sorted(name for name, _ in names),
    }


@pytest.fixture
def uri(request: pytest.FixtureRequest, store_on: StoreOn) -> str:
    """A store that does not exist yet, on the database that the test's parameter names."""
    return store_on(request.param)


Both = tuple[Release, Release]


@pytest.fixture(params=[BEFORE_INTENTS, BEFORE_CHECKS])
def both(request: pytest.FixtureRequest, uri: str, tmp_path: Path) -> Both:
    """The earlier and the present release."""
    earlier = checkout(request.param, tmp_path / "earlier")
    return Release(earlier, uri, tmp_path / "lake"), Release(PRESENT, uri, tmp_path / "lake")


@pytest.mark.exhaustive
@pytest.mark.parametrize("uri", databases(SHARED, ordinary=("sqlite",)), indirect=True)
def test_two_releases_work_in_turn_and_find_what_the_other_did(both: Both) -> None:
    earlier, present = both
    assert earlier.work("a") == expected(("a", 1))
    assert present.work("b") == expected(("a", 1), ("b", 1))
    assert "commit" in earlier.sweep()
    assert earlier.work("c") == expected(("a", 1), ("b", 1), ("c", 1))
    assert "commit" in present.sweep()
    assert present.work("d", 2) == expected(("a", 1), ("b", 1), ("c", 1), ("d", 2))
    for release in both:
        assert release.command("fsck")[0] == 0
    code, out = present.command("upgrade", "--check")
    assert code == 1, out
    assert earlier.work("e") == expected(("a", 1), ("b", 1), ("c", 1), ("d", 2), ("e", 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("uri", databases(SHARED, ordinary=("sqlite",)), indirect=True)
def test_two_releases_work_at_once_and_lose_nothing(both: Both) -> None:
    earlier, present = both
    earlier.work("a")
    works = [release.start(me, 8) for me, release in (("b", earlier), ("c", present), ("d", earlier))]
    for process in works:
        found(process)
    all_done = (("a", 1), ("b", 8), ("c", 8), ("d", 8))
    for release in both:
        assert release.work("", 0) == expected(*all_done)
        release.sweep()
        assert release.command("fsck")[0] == 0
    assert earlier.work("", 0) == expected(*all_done)


@pytest.mark.exhaustive
@pytest.mark.parametrize("uri", databases(SHARED, ordinary=("sqlite",)), indirect=True)
def test_an_earlier_release_refuses_an_upgraded_realm_and_deletes_nothing(both: Both) -> None:
    earlier, present = both
    earlier.work("a")
    present.work("b")
    code, out = present.command("upgrade")
    assert code == 0, out
    assert "may now use" in out
    process = earlier.start("c", 1)
    _, error = process.communicate(timeout=120)
    assert process.returncode
    assert "realm 'default' has format 2" in error
    for job in ("sweep", "remove-orphans"):
        code, out = earlier.command("maintain", job, "--no-spark", "--no-dry-run")
        assert code == 2, out
        assert "realm 'default' has format 2" in out
    assert present.work("c") == expected(("a", 1), ("b", 1), ("c", 1))
    assert present.command("upgrade", "--check")[0] == 0
    assert present.command("fsck")[0] == 0
