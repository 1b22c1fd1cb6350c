"""Reading a store's URI and options."""

from __future__ import annotations

import re

import pytest

from polaris_spark.backends.store_options import Given, Host, account, hosts
from polaris_spark.errors import StoreURIError
from polaris_spark.store_uris import Secret, StoreURI


def given(**options: str | Secret) -> Given:
    return Given("some", options, ("password", "timeout", "pool", "mode", "plain", "name"))


def test_options_are_read_by_their_kinds_and_may_be_missing() -> None:
    all_of_them = given(timeout="2 s", pool="7", mode="fast", plain="true", name="abc")
    assert all_of_them.duration_ms("timeout", "30 s") == 2_000
    assert all_of_them.count("pool", 3, 10) == 7
    assert all_of_them.one_of("mode", ("fast", "safe")) == "fast"
    assert all_of_them.flag("plain")
    assert all_of_them.matching("name", re.compile("[a-z]+"), "letters") == "abc"
    none = given()
    assert none.duration_ms("timeout", "30 s") == 30_000
    assert none.count("pool", 3, 10) == 3
    assert none.one_of("mode", ("fast", "safe")) is None
    assert not none.flag("plain")
    assert none.matching("name", re.compile("[a-z]+"), "letters") is None
    assert none.password is None


@pytest.mark.parametrize("password", ["open sesame", Secret("open sesame")])
def test_a_password_is_kept_as_a_secret_and_apart(password: str | Secret) -> None:
    found = given(password=password, name=Secret("hidden"))
    assert found.password is not None
    assert found.password.reveal() == "open sesame"
    assert found.texts == {"name": "hidden"}


def test_a_value_that_is_refused_shows_no_secret() -> None:
    message = str(given(name="https://me:sesame@host/?sig=open").refused("name", "a URL without credentials"))
    assert "host" in message
    assert "sesame" not in message
    assert "open" not in message


def test_a_password_belongs_to_a_user() -> None:
    assert account(StoreURI.parse("some://me@host/x"), given(password="open")) == ("me", Secret("open"))
    assert account(StoreURI.parse("some://me@host/x"), given()) == ("me", None)
    assert account(StoreURI.parse("some://host/x"), given()) == (None, None)
    with pytest.raises(StoreURIError, match="without a user; write some://user@host") as caught:
        account(StoreURI.parse("some://host/x"), given(password="sesame"))
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "0 s", "-1 s", "5", "25 d", "a while"])
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(StoreURIError, match="timeout"):
        given(timeout=text).duration_ms("timeout", "30 s")


@pytest.mark.parametrize("text", ["", "0", "11", "-1", "1.0", "٣", "9" * 400, " 1"])
def test_numbers_out_of_bounds_are_refused(text: str) -> None:
    with pytest.raises(StoreURIError, match=r"'pool' of a some: store .* a number from 1 to 10"):
        given(pool=text).count("pool", 3, 10)


def test_other_words_are_refused() -> None:
    with pytest.raises(StoreURIError, match="it must be fast, safe or both"):
        given(mode="Fast").one_of("mode", ("fast", "safe", "both"))
    with pytest.raises(StoreURIError, match="it must be true or false"):
        given(plain="yes").flag("plain")
    with pytest.raises(StoreURIError, match="it must be letters"):
        given(name="a1\n").matching("name", re.compile("[a-z]+"), "letters")
    with pytest.raises(StoreURIError, match="did you mean 'timeout'"):
        given(timeot="1 s")


def test_hosts_have_ports_or_the_default() -> None:
    uri = StoreURI.parse("mongodb://ann@one,two:5,[::1]:6,[::2]/db")
    assert hosts(uri, 99) == [Host("one", 99), Host("two", 5), Host("::1", 6), Host("::2", 99)]


@pytest.mark.parametrize("text", ["one,", "one:", "one:0", "one:65536", "one:x", "::1", "[::1"])
def test_malformed_hosts_are_refused(text: str) -> None:
    with pytest.raises(StoreURIError):
        hosts(StoreURI.parse(f"mongodb://{text}/db"), 99)
