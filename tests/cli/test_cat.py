"""`polaris-spark cat`."""

from __future__ import annotations

from typing import Any

import pytest

from polaris_spark.cli.cat import possible_ids
from polaris_spark.errors import InputError
from tests.cli.catalogs import run


def test_a_commit_is_shown_with_header_and_content(store: str) -> None:
    (newest,) = run("log", store, "--limit", "1", "--json").json
    shown = run("cat", store, newest["id"]).json
    assert (shown["type"], shown["realm"], shown["content"]["number"]) == (
        "commit",
        "default",
        newest["number"],
    )
    assert shown["content"]["entries"] in shown["strong"]


def test_pointers_can_be_followed(store: str) -> None:
    (newest,) = run("log", store, "--limit", "1", "--json").json
    entries = run("cat", store, run("cat", store, newest["id"]).json["content"]["entries"]).json
    assert entries["type"] == "entries"
    assert entries["content"]["entries"][0]["action"] == newest["changes"][0]["action"]


def test_pieces_of_metadata_are_shown_as_json(store: str) -> None:
    schema = run("cat", store, table(store)["content"]["schemas"][0]["piece"]).json
    assert schema["content"]["text"]["fields"][0]["name"] == "n"


def test_ids_may_be_decimal(store: str) -> None:
    found = table(store)
    assert run("cat", store, found["decimal"]).json == found


def test_a_text_of_digits_is_tried_as_a_decimal_and_a_hexadecimal_id() -> None:
    assert possible_ids("123") == [0x123, 123]
    assert possible_ids("0x123") == [0x123]
    assert possible_ids("12ab") == [0x12AB]


@pytest.mark.parametrize("text", ["", "xyz", "0", "-1", "1.5", "ffffffffffffffff", "9" * 20])
def test_a_value_that_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not an object id"):
        possible_ids(text)


def table(store: str) -> Any:
    """The content of the table `db.t`, as `cat` shows it."""
    changes = [
        c for commit in run("log", store, "--json").json for c in commit["changes"] if c["name"] == "db.t"
    ]
    return run("cat", store, changes[0]["after"]).json
