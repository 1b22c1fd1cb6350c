"""Store URIs and options that cannot be opened: each ends with one clear error, whatever text it contains."""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.databases import BUILT_IN
from polaris_spark.databases import FILE_SCHEMES as FILES
from polaris_spark.errors import PolarisError, StoreURIError
from tests.stores import EMBEDDED, NETWORKED

NETWORK = [*(scheme for scheme in BUILT_IN if scheme not in EMBEDDED), "nosuch", ""]
PIECES = [
    "/", "//", "%00", "\0", "%zz", "%", "%ff", "%C3%28", "%ED%A0%80", "é", "表", "x" * 300, "a" * 70_000, "@",
    "user:pw@", "%00:%00@", "[::1", "[::1]", ":0", ":99999", ":65536", ":-1", ":abc", ":", "host", "127.0.0.1", "?",
    "?timeout=", "?timeout=1s", "?timeout=0s", "?x=1", "?timeout=99999999999999999999d", "?timeout=%00", "?%ff=%ff",
    "&", "=", "#", "..", ".", "\ud800", "\n", "\u202e", " ", "?endpoint=http://", "?endpoint=http://[",
    "?schema=%00", "?region=%0A", "?endpoint=http://127.0.0.1:99999", ",", ";",
]  # fmt: skip  # a list of words
SEED = os.environ.get("POLARIS_SPARK_SEED", "store URIs")


def use(uri: str, **options: str) -> PolarisError | None:
    """Open a store, and create it if that needs no server. Returns the error."""
    try:
        backend = open_backend(uri, options)
        try:
            if backend.scope != "cluster":
                backend.setup()
        finally:
            backend.close()
    except PolarisError as error:
        str(error).encode()
        return error
    return None


@pytest.mark.parametrize("scheme", [*NETWORK, *FILES, "memory"])
def test_a_malformed_uri_raises_only_errors_of_this_package(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"POLARIS_SPARK_SEED={SEED}")
    dice = random.Random(f"{SEED} {scheme}")
    monkeypatch.chdir(tmp_path)
    for _ in range(60 if scheme in FILES else 300):
        # Paths are relative, because the files are created.
        between = (
            dice.choice([":a", f"://{tmp_path}/a"])
            if scheme in FILES
            else dice.choice([":", "://", ":///", ""])
        )
        pieces = [piece for piece in PIECES if scheme not in FILES or piece not in ("..", ".")]
        use(scheme + between + "".join(dice.choice(pieces) for _ in range(dice.randint(0, 4))))


@pytest.mark.parametrize("scheme", [*NETWORKED, "az"])
@pytest.mark.parametrize(
    "text", ["\0", "\ud800", "x" * 70_000, "", "é", "\n", "-1", "env:NO_SUCH_VARIABLE"], ids=ascii
)
def test_a_malformed_option_raises_only_errors_of_this_package(scheme: str, text: str) -> None:
    for option in ("timeout", "password", "region", "schema", "endpoint", "user", "sslmode", "a\0", text):
        use(f"{scheme}://ada@host/place", **{option: text})
        use(f"{scheme}://host/place", **{option: text})


@pytest.mark.parametrize("scheme", [*FILES, "postgresql", "mongodb", "s3"])
@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("///x/%00.db", "the character NUL"),
        ("///x/%ff.db", "not UTF-8"),
        ("///x/\ud800.db", "lone surrogate"),
        ("///x?timeout=%ff", "not UTF-8"),
        ("///x?timeout=%00", "NUL"),
    ],
)
def test_a_uri_that_names_nothing_that_can_exist_is_refused(scheme: str, rest: str, words: str) -> None:
    with pytest.raises(StoreURIError, match=words):
        open_backend(f"{scheme}:{rest}")


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("file", "names a file, but a file: store is a directory"),
        ("rocksdb", "is a file"),
        ("sqlite", "not an SQLite"),
    ],
)
def test_a_path_of_a_foreign_file_is_refused_and_the_file_is_unchanged(
    scheme: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n" * 100)
    before = zlib.crc32(path.read_bytes())
    error = use(f"{scheme}://{path}")
    assert isinstance(error, StoreURIError)
    assert words in str(error)
    assert str(path) in str(error)
    assert zlib.crc32(path.read_bytes()) == before
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("scheme", FILES)
@pytest.mark.parametrize("path", ["a" * 300, "a/" * 2_500 + "a"], ids=["name", "path"])
def test_a_path_that_is_too_long_is_refused(scheme: str, path: str, tmp_path: Path) -> None:
    assert isinstance(use(f"{scheme}://{tmp_path}/{path}"), StoreURIError)


def test_a_pipe_is_not_a_store(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for scheme in FILES:
        error = use(f"{scheme}://{tmp_path}/pipe")
        assert isinstance(error, StoreURIError), scheme
