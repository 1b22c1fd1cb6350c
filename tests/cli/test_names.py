"""The command line shows and accepts every name in the catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.catalog.entities.identifiers import dotted
from polaris_spark.names import sql_name as shown_name
from tests.cli.catalogs import run
from tests.names import unchecked_names
from tests.rest.client import Client, connect

NAMES = [
    "a/b", "%2F", "%00", "+", " a ", "a.b", "...", "a\\b", "it's", '"', "`", "``.``", "-rf", "--table", "$HOME", "*",
    "?#", "A", "表", "e\u0301", "\u200d", "🧊", "[red]", "x" * 500,
]  # fmt: skip  # a list of words
OLD = ["a\nb", "\x1b[31m", "\0", "\u202e"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that has a namespace of each name, with a table of that name in it."""
    folder = tmp_path_factory.mktemp("names")
    catalog: Client = connect(f"sqlite://{folder / 'store.db'}", folder / "warehouse")
    with unchecked_names():
        for name in (*NAMES, *OLD):
            catalog.namespace(name)
            catalog.create(name, (name,))
    catalog.session.close()
    return f"sqlite://{folder / 'store.db'}"


def test_every_name_is_listed_as_it_is(store: str) -> None:
    tables = [one["name"] for one in run("tables", store, "--json").json if one["kind"] == "table"]
    assert sorted(tables) == sorted(shown_name((name, name)) for name in (*NAMES, *OLD))


def test_no_name_reaches_the_terminal_unescaped(store: str) -> None:
    shown = run("tables", store).out + run("log", store).out
    assert not [c for c in shown if c != "\n" and not c.isprintable() and c != "\u200d"]
    assert "x" * 30 in shown


@pytest.mark.parametrize(
    "name", [name for name in (*NAMES, *OLD) if name != "\0"], ids=lambda name: ascii(name)[1:20]
)
def test_every_table_can_be_given_as_an_argument(store: str, tmp_path: Path, name: str) -> None:
    place = str(tmp_path / "copy")
    done = run("export", store, f"--table={dotted((name, name))}", "--location", place, "--json")
    assert [one["outcome"] for one in done.json] == ["written"]
