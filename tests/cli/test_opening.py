"""Properties on the command line: `--property NAME=VALUE`, specific options, and the password."""

from __future__ import annotations

import pytest

from polaris_spark.cli.options import PASSWORD_VARIABLE
from polaris_spark.cli.stores import properties_of
from polaris_spark.store_uris import Secret

STORE = {"store": "postgresql://user@host/db"}


def revealed(named: list[str], password: str | None = None) -> dict[str, str]:
    found = properties_of(STORE, named, password).store_options
    return {name: text.reveal() if isinstance(text, Secret) else text for name, text in found.items()}


def test_options_of_the_store_may_be_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "hidden")
    found = properties_of(STORE, ["store.sslmode=require", "store.sslpassword=env:KEY", "grace=1 h"], None)
    assert found.store_options["sslmode"] == "require"
    assert "hidden" not in repr(found)
    assert revealed(["store.sslpassword=env:KEY"]) == {"sslpassword": "hidden"}
    assert found.grace == 3_600_000


def test_the_password_that_is_named_most_plainly_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, text in ((PASSWORD_VARIABLE, "ambient"), ("MINE", "mine"), ("OTHER", "other")):
        monkeypatch.setenv(variable, text)
    assert revealed(["store.sslmode=require"]) == {"sslmode": "require", "password": "ambient"}
    assert revealed(["store.password=env:MINE"]) == {"password": "mine"}
    assert revealed(["store.password=env:MINE"], "env:OTHER") == {"password": "other"}
