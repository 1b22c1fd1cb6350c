"""Changes of catalogs, killed before each of their operations on the database, and made by several processes at once:
a catalog exists with all its branches, or is dropped with all of them, and can be restored."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from polaris_spark.catalog.catalogs.catalog_changes import unsettled
from polaris_spark.catalog.catalogs.references import catalog_prefix
from polaris_spark.errors import ReferenceGoneError, RequestError, TryAgainError
from polaris_spark.jobs.registry import call
from polaris_spark.rest.session import Session
from polaris_spark.testing.waiting import PATIENCE_S
from tests.faults.killing import die_at, killed_before
from tests.forking import context, preload
from tests.rest.client import Client, connect
from tests.stores import SHARED, StoreOn, shared_out

preload(__name__)
pytestmark = pytest.mark.usefixtures("brief_glances")

CONTENT: dict[str, list[list[str]]] = {"dev": [], "main": [["db"]]}
"""The namespaces of the catalog `a` by branch."""
KILLS_OF_A_STORE = 5
"""Number of kills in one store. The next one is in a new store, because each check reads the whole history."""


class Asked(NamedTuple):
    """A change of the catalog `a`, which has branches with content."""

    begins_dropped: bool
    """Whether the catalog is dropped before the change."""
    run: Callable[[Session], object]
    before: tuple[list[str], list[str]]
    """Names of the catalogs that exist, and of those that are dropped, before the change."""
    after: tuple[list[str], list[str]]
    """The same after the change."""


CHANGES = {
    "rename": Asked(False, lambda s: s.catalogs.rename("a", "b"), (["a"], []), (["b"], [])),
    "drop": Asked(False, lambda s: s.catalogs.drop("a", cascade=True), (["a"], []), ([], ["a"])),
    "undrop": Asked(True, lambda s: s.catalogs.undrop("a"), ([], ["a"]), (["a"], [])),
    "undrop_to": Asked(True, lambda s: s.catalogs.undrop("a", to="b"), ([], ["a"]), (["b"], [])),
}


def opened(uri: str, folder: Path, name: str = "polaris", branch: str = "main") -> Client:
    return connect(uri, folder / "warehouse" / name, catalog=name, branch=branch, grace="0s")


def die(uri: str, folder: Path, name: str, number: int) -> None:
    """Make a change, and be killed before an operation on the database. Called in another process."""
    session = opened(uri, folder).session
    die_at(number, [session.connection.backend])
    CHANGES[name].run(session)


def listed(session: Session) -> tuple[list[str], list[str]]:
    """The names of the catalogs besides `polaris` that exist, and of those that are dropped."""
    there = [one.row.name for one in session.catalogs.all() if one.row.name != "polaris"]
    return there, [one.row.name for one in session.catalogs.dropped()]


def contents(uri: str, folder: Path, name: str) -> dict[str, list[list[str]]]:
    """The namespaces of a catalog by branch."""
    found = {}
    for branch in CONTENT:
        with opened(uri, folder, name, branch).session as session:
            found[branch] = Client(session).ok("GET", "v1/namespaces")["namespaces"]
    return found


def check(session: Session) -> None:
    """Check that all catalogs are settled, and that no row is damaged."""
    references = session.catalog.references
    assert unsettled(references) == []
    live = {one.name for one in references.listed() if one.registration.state == "live"}
    for found in session.catalogs.all():
        assert f"{catalog_prefix(found.row)}heads/main" in live
    for gone in session.catalogs.dropped():
        assert not [name for name in live if name.startswith(catalog_prefix(gone.row))]
    # A warning says that the next sweep seals rows of dropped references.
    faults = [row for row in call(session, "fsck") if row[0] != "warning"]
    assert faults == [], "; ".join(str(row[-1]) for row in faults)


@pytest.mark.parametrize(("scheme", "name"), shared_out(list(CHANGES), SHARED, ordinary=("sqlite", "file")))
def test_a_process_may_be_killed_before_each_operation_on_the_database(
    scheme: str, name: str, store_on: StoreOn, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    took_effect = []
    for killed, number in enumerate(killed_before(scheme, pytestconfig)):
        turn, used = divmod(killed, KILLS_OF_A_STORE)
        if not used:
            uri = store_on(scheme)
        is_killed, effect = killed_at(uri, tmp_path / str(turn), name, number)
        took_effect.append(effect)
        if not is_killed:
            break
    print(f"{name}: killed {len(took_effect) - 1} times; took effect {took_effect}")
    assert took_effect[-1]
    assert not took_effect[0]


def killed_at(uri: str, folder: Path, name: str, number: int) -> tuple[bool, bool]:
    """Make a change in another process, which is killed before an operation on the database. Then complete the change,
    and end the catalog.

    Returns:
        whether the process made so many operations that it was killed, and whether the change took effect.
    """
    asked = CHANGES[name]
    with opened(uri, folder).session as session:
        session.catalogs.create("a", {"warehouse": str(folder / f"w{number}")})
        with opened(uri, folder, "a").session as of_a:
            call(of_a, "create_branch", name="dev")
            Client(of_a).namespace("db")
        if asked.begins_dropped:
            session.catalogs.drop("a", cascade=True)
        process = context.Process(target=die, args=(uri, folder, name, number))
        process.start()
        process.join(PATIENCE_S)
        found = listed(session)
        assert found in (asked.before, asked.after), f"killed before operation {number}"
        if process.exitcode != 0:
            assert process.exitcode == -signal.SIGKILL
            if found == asked.before:
                asked.run(session)
            elif found[0]:
                assert contents(uri, folder, found[0][0]) == CONTENT  # opening it completes it
            else:
                session.catalogs.settle_all()
        assert listed(session) == asked.after
        check(session)
        there, dropped = asked.after
        if dropped:
            session.catalogs.undrop("a")
            there = ["a"]
        assert contents(uri, folder, there[0]) == CONTENT
        session.catalogs.drop(there[0], cascade=True)
        call(session, "sweep")  # ends the catalog, because the grace period is 0 s
        assert listed(session) == ([], [])
        check(session)
    return process.exitcode != 0, found == asked.after


def change_at_random(uri: str, folder: Path, seed: int) -> None:
    """Make random changes of catalogs. Other processes do so at the same time. Called in another process."""
    choose = random.Random(f"catalogs at once {seed}")
    with opened(uri, folder).session as session:
        for step in range(40):
            catalogs, name, to = session.catalogs, choose.choice("abc"), choose.choice("abc")
            action = choose.choice(("create", "rename", "drop", "undrop", "sweep"))
            try:
                if action == "create":
                    catalogs.create(name, {"warehouse": str(folder / f"w{seed}-{step}")})
                    with opened(uri, folder, name).session as of_name:
                        Client(of_name).send("POST", "v1/namespaces", {"namespace": ["db"]})
                elif action == "rename":
                    catalogs.rename(name, to)
                elif action == "drop":
                    catalogs.drop(name, cascade=choose.random() < 0.5)
                elif action == "undrop":
                    catalogs.undrop(name, to=to)
                elif choose.random() < 0.3:
                    call(session, "sweep")
            except (RequestError, ReferenceGoneError, TryAgainError):  # another process was faster
                pass


@pytest.mark.parametrize("seed", range(3))
def test_several_processes_change_catalogs_at_once(tmp_path: Path, seed: int) -> None:
    uri = f"sqlite://{tmp_path}/store.db"
    with opened(uri, tmp_path).session as session:
        processes = [
            context.Process(target=change_at_random, args=(uri, tmp_path, 10 * seed + number))
            for number in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE_S)
        assert [process.exitcode for process in processes] == [0, 0]
        check(session)
        for found in session.catalogs.all():
            with opened(uri, tmp_path, found.row.name).session as of_found:
                assert Client(of_found).send("GET", "v1/namespaces").status == 200
        call(session, "sweep")
        check(session)
