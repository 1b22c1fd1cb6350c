"""Store URIs and properties: what is accepted, and how the rest is refused."""

from __future__ import annotations

import os

import pytest

from polaris_spark.config import Properties
from polaris_spark.errors import InputError, StoreURIError
from polaris_spark.property_values import duration_ms, size_bytes
from polaris_spark.store_uris import Secret, StoreURI

SECRET = "open-sesame-42"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("sqlite:///abs/store.db", "/abs/store.db"),
        ("sqlite:/abs/store.db", "/abs/store.db"),
        ("sqlite:////abs//store.db", "/abs/store.db"),
        ("SQLite:///abs/../store.db", "/store.db"),
        ("sqlite:///abs/a%20b%23c%3Fd.db", "/abs/a b#c?d.db"),
        ("sqlite:relative/store.db", os.path.abspath("relative/store.db")),
        ("rocksdb:///abs/store", "/abs/store"),
    ],
)
def test_a_file_store_has_an_absolute_path(text: str, path: str) -> None:
    uri = StoreURI.parse(text)
    assert uri.path == path
    assert uri.key.endswith(path)


def test_stores_differ_by_schema_and_endpoint_however_these_are_given() -> None:
    plain = StoreURI.parse("postgresql://host/db?timeout=1s")
    named = StoreURI.parse("postgresql://host/db?schema=other")
    assert plain.key == StoreURI.parse("postgresql://me:geheim@host/db").key
    assert plain.key != named.key
    assert plain.located({"schema": "other", "password": Secret("x")}).key == named.key
    assert plain.located(None) == plain
    assert StoreURI.parse("s3://bucket?endpoint=http://a").key != StoreURI.parse("s3://bucket").key
    assert StoreURI.parse("mariadb:///db?socket=/a").key != StoreURI.parse("mariadb:///db?socket=/b").key


def test_a_store_in_memory_may_have_a_name() -> None:
    assert StoreURI.parse("memory:").path == ""
    assert StoreURI.parse("memory:name-1").path == "name-1"


def test_a_database_uri_has_hosts_user_password_path_and_options() -> None:
    uri = StoreURI.parse(
        f"postgresql://user%40home:{SECRET}%2F@h1:5432,h2:5433/data%20base?sslmode=require&a=b%26c"
    )
    assert uri.scheme == "postgresql"
    assert uri.authority == "h1:5432,h2:5433"
    assert uri.user == "user@home"
    assert uri.password == Secret(f"{SECRET}/")
    assert uri.path == "data base"
    assert uri.options == {"sslmode": "require", "a": "b&c"}


@pytest.mark.parametrize(
    "text",
    [
        "memory:",
        "memory:name",
        "sqlite:///abs/store.db",
        "sqlite:///abs/a%20b%23c%3Fd%25.db?synchronous=normal",
        "postgresql://user%40home@h1:5432,h2/data%20base?a=b%26c",
        "s3://bucket/prefix/deep",
        "s3://bucket/prefix%40home",
        "s3://bucket",
    ],
)
def test_a_uri_as_text_parses_to_the_same_uri(text: str) -> None:
    assert StoreURI.parse(str(StoreURI.parse(text))) == StoreURI.parse(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must begin with a scheme"),
        ("/tmp/store.db", "must begin with a scheme"),
        ("store.db", "must begin with a scheme"),
        ("sqlite:", "must have a path"),
        ("sqlite:///", "must have a path"),
        ("sqlite://host/store.db", "has no host"),
        ("sqlite:///directory/", "names a directory"),
        ("sqlite:///:memory:", "write memory:"),
        ("sqlite:///a#b", "%23"),
        ("sqlite:///a\nb", "control characters"),
        ("sqlite:///a?synchronous", "name=value"),
        ("sqlite:///a?x=1&x=2", "given twice"),
        ("memory://host", "no host"),
        ("memory:a/b", "letters, digits"),
        ("postgresql:/db", "two slashes"),
        ("foo:/x", r"'foo:/x' is malformed; Only file:, rocksdb:, sqlite: may have a path"),
        ("sqlit:/tmp/x.db", "did you mean 'sqlite:/tmp/x.db'"),
        (f"postgresql://user:a/{SECRET}@host/db", "%2F"),
        (f"s3://user:a@b/{SECRET}@bucket/prefix", "%2F"),
        (f"postgresql://domain/user:{SECRET}@host/db", "%2F"),
        (f"sqlite://user:{SECRET}@host/db", "has no host"),
        (f"postgresql//user:a#{SECRET}@host/db", "must begin with a scheme"),
        (f"postgresql://host/db?password={SECRET}", "store.password"),
        (f"s3://bucket/prefix?secret_access_key={SECRET}", "store.secret_access_key"),
        (f"az://container?sas={SECRET}", "store.sas"),
        (f"mongodb://host/db?authMechanismProperties=AWS_SESSION_TOKEN:{SECRET}", "store.authMechanismP"),
    ],
)
def test_a_malformed_uri_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(StoreURIError, match=words) as raised:
        StoreURI.parse(text)
    assert SECRET not in str(raised.value)


def test_no_password_is_ever_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"postgresql://user:{SECRET}@host/db"
    properties = Properties.parse({"store": text, "store.password": SECRET})
    shown = [str(properties), repr(properties), str(properties.store), repr(properties.store)]
    with pytest.raises(StoreURIError) as refused:
        Properties.parse({"store": text}, refuse_uri_password=True)
    with pytest.raises(StoreURIError) as malformed:
        StoreURI.parse(f"//user:{SECRET}@host/db")
    shown += [str(refused.value), str(malformed.value)]
    assert not any(SECRET in s for s in shown)
    assert "store.password" in str(refused.value)


def test_a_password_comes_from_its_property_the_uri_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def password(given: dict[str, str]) -> str:
        secret = Properties.parse(given).store_options["password"]
        assert isinstance(secret, Secret)
        return secret.reveal()

    assert password({"store": "postgresql://u:one@host/db"}) == "one"
    assert password({"store": "postgresql://u:one@host/db", "store.password": "two"}) == "two"
    monkeypatch.setenv("POLARIS_TEST_PASSWORD", "three")
    from_environment = {"store": "postgresql://u@host/db", "store.password": "env:POLARIS_TEST_PASSWORD"}
    assert password(from_environment) == "three"
    monkeypatch.delenv("POLARIS_TEST_PASSWORD")
    with pytest.raises(InputError, match="POLARIS_TEST_PASSWORD"):
        password(from_environment)


@pytest.mark.parametrize("option", ["secret_access_key", "session-token", "sas", "accountKey"])
def test_every_secret_option_is_hidden_and_may_come_from_the_environment(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARIS_TEST_SECRET", SECRET)
    for text in (SECRET, "env:POLARIS_TEST_SECRET"):
        properties = Properties.parse({"store": "s3://bucket/prefix", f"store.{option}": text})
        secret = properties.store_options[option]
        assert isinstance(secret, Secret)
        assert secret.reveal() == SECRET
        assert SECRET not in repr(properties)


def test_properties_have_defaults() -> None:
    properties = Properties.parse({"store": "memory:"})
    assert properties.realm == "default"
    assert properties.branch == "main"
    assert properties.metadata_files == "every-commit"
    assert properties.create is True
    assert properties.catalog is properties.warehouse is properties.principal is None
    assert properties.idempotency_key_lifetime == 30 * 60_000
    assert properties.history_retention == 3 * 86_400_000
    assert properties.grace == 3 * 3_600_000
    assert properties.cache_bytes == 128 * 2**20


def test_properties_are_parsed() -> None:
    given = {
        "store": "sqlite:///tmp/x.db", "store.timeout": "5 s", "warehouse": "/tmp/w", "realm": "r", "catalog": "c",
        "branch": "b", "principal": "p", "metadata-files": "never", "python": "/usr/bin/python3", "create": "FALSE",
        "idempotency-key-lifetime": "1h", "history-retention": "7 d", "grace": "90min", "cache-bytes": "64 MiB",
        "polaris.append-rebase": "true", "polaris.schema-merge": "true", "commit-timeout": "5s",
    }  # fmt: skip  # all properties at a glance
    properties = Properties.parse(given)
    assert properties.store_options == {"timeout": "5 s"}
    assert (properties.warehouse, properties.realm, properties.catalog) == ("/tmp/w", "r", "c")
    assert (properties.branch, properties.principal) == ("b", "p")
    assert (properties.metadata_files, properties.create) == ("never", False)
    assert properties.idempotency_key_lifetime == 3_600_000
    assert (properties.history_retention, properties.grace) == (7 * 86_400_000, 90 * 60_000)
    assert properties.cache_bytes == 64 * 2**20
    assert properties.commit_timeout == 5_000
    assert properties.append_rebase
    assert properties.schema_merge
    assert properties.other == {}


def test_properties_of_iceberg_and_others_are_kept() -> None:
    names = """io-impl cache-enabled cache.expiration-interval-ms s3.endpoint client.region type uri gc.enabled
        default-namespace table-default.write.format.default metrics-reporter-impl header.X-Trace rest.auth.type
        oauth2-server-uri view-endpoints-supported"""
    others = dict.fromkeys(names.split(), "x")
    assert Properties.parse({"store": "memory:", **others}).other == others


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("metadata_files", "metadata-files"),
        ("metadatafiles", "metadata-files"),
        ("warehuose", "warehouse"),
        ("Realm", "realm"),
        ("relm", "realm"),
        ("brnach", "branch"),
        ("catalogue", "catalog"),
        ("principle", "principal"),
        ("history_retention", "history-retention"),
        ("cache-byte", "cache-bytes"),
        ("append-rebase", "polaris.append-rebase"),
        ("schema-merge", "polaris.schema-merge"),
        ("creat", "create"),
        ("gc.enabeld", "gc.enabled"),
        ("gc-enabled", "gc.enabled"),
        ("history.expire.min-snapshot-to-keep", "history.expire.min-snapshots-to-keep"),
        ("table-defaults.write.format.default", "table-default.write.format.default"),
        ("table_override.x", "table-override.x"),
    ],
)
def test_a_near_miss_of_our_names_is_refused_with_the_name_meant(name: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{meant}'"):
        Properties.parse({"store": "memory:", name: "x"})


@pytest.mark.parametrize(
    "name", ["cache-enabled", "gc.enabled", "history.expire.max-ref-age-ms", "table-default.x", "table.x"]
)
def test_a_name_that_exists_is_not_a_near_miss(name: str) -> None:
    assert Properties.parse({"store": "memory:", name: "1"}).other == {name: "1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metadata-files", "sometimes"), ("create", "yes please"), ("grace", "3"), ("grace", "-3 h"), ("grace", "soon"),
        ("grace", "\uff11 d"),
        ("cache-bytes", "lots"), ("cache-bytes", "12 parsecs"), ("realm", ""), ("warehouse", " "), ("branch", ""),
        ("polaris.append-rebase", "maybe"),
    ],
)  # fmt: skip  # pairs
def test_a_value_that_cannot_be_used_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InputError, match=name):
        Properties.parse({"store": "memory:", name: value})


@pytest.mark.parametrize("given", [{}, {"store": ""}, {"store": "  "}, {"warehouse": "/tmp"}])
def test_a_missing_store_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(StoreURIError, match="'store' is missing"):
        Properties.parse(given)


def test_a_misspelt_store_is_named() -> None:
    with pytest.raises(InputError, match="did you mean 'store'"):
        Properties.parse({"stroe": "memory:"})


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("1.5 s", 1_500), ("2 min", 120_000), ("2m", 120_000), ("1h", 3_600_000)]
)
def test_durations_have_units(text: str, ms: int) -> None:
    assert duration_ms("x", text) == ms


@pytest.mark.parametrize("digits", [30, 400])
def test_durations_are_not_endless(digits: int) -> None:
    with pytest.raises(InputError, match=r"x is .9999.*longer than"):
        duration_ms("x", "9" * digits + " d")


@pytest.mark.parametrize(
    ("text", "size"), [("10", 10), ("1 kB", 1_000), ("1KiB", 1_024), ("1.5 MiB", 1_572_864)]
)
def test_sizes_may_have_units(text: str, size: int) -> None:
    assert size_bytes("x", text) == size


@pytest.mark.parametrize("digits", [30, 400])
def test_sizes_are_not_endless(digits: int) -> None:
    with pytest.raises(InputError, match=r"x is .9999.*more than"):
        size_bytes("x", "9" * digits)


def test_a_property_of_iceberg_may_name_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARIS_TEST_KEY", SECRET)
    parsed = Properties.parse({"store": "memory:", "s3.secret-access-key": "env:POLARIS_TEST_KEY", "a": "b"})
    assert parsed.other == {"s3.secret-access-key": SECRET, "a": "b"}
    with pytest.raises(InputError, match=r"'POLARIS_NO_SUCH_VARIABLE'.*not set"):
        Properties.parse({"store": "memory:", "s3.secret-access-key": "env:POLARIS_NO_SUCH_VARIABLE"})


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "caf\udce9"])
def test_a_secret_that_no_driver_could_take_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    with pytest.raises(InputError, match="NUL") as refused:
        Secret(text).reveal()
    assert "caf" not in str(refused.value)
    if "\0" not in text and text.startswith("caf"):  # as Python reads a variable that is not UTF-8
        monkeypatch.setenv("POLARIS_TEST_KEY", text)
        with pytest.raises(InputError, match="'POLARIS_TEST_KEY'"):
            Secret("env:POLARIS_TEST_KEY").reveal()
