"""The demo on a database server and on an object store, and the output of the commands that the demo suggests
afterwards."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.stores import StoreOn, configured

Run = Callable[..., str]


def know(password: str) -> None:
    """Store a password in the environment variable that the program reads."""
    os.environ["DEMO_PASSWORD"] = password


def outcome(words: tuple[str, ...]) -> tuple[int | str | None, str, str]:
    """Run the program with these arguments, and return its exit code and its output."""
    from polaris_spark.cli import main

    sys.argv = ["polaris-spark", *words]
    code: int | str | None = 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = end.code
    return code or 0, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def program() -> Iterator[Callable[[str], Run]]:
    """Runs the program in another process, which keeps its JVM. There is one process for each password in the
    environment."""
    with contextlib.ExitStack() as ends:
        pools: dict[str, ProcessPoolExecutor] = {}

        def with_password(password: str) -> Run:
            if password not in pools:
                pool = ProcessPoolExecutor(
                    1,
                    multiprocessing.get_context("spawn"),
                    initializer=know,
                    initargs=(password,),
                )
                pools[password] = ends.enter_context(pool)

            def run(*words: str) -> str:
                code, out, err = pools[password].submit(outcome, words).result(900)
                assert (code, err) == (0, ""), out[-6_000:] + err[-2_000:]
                return out

            return run

        yield with_password


@pytest.mark.programs
@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["postgresql", "s3"])
def test_the_demo_runs_on_the_database_and_its_commands_show_what_it_left(
    scheme: str, store_on: StoreOn, tmp_path: Path, program: Callable[[str], Run]
) -> None:
    given = configured(store_on(scheme))
    store, password = given["store"], given.get("store.password")
    secret = ["--password", "env:DEMO_PASSWORD"] if password else []
    run = program(password or "")
    shown = run("demo", "--store", store, *secret, "--directory", str(tmp_path / "new"))
    assert "figures agree with pandas on the same data" in shown
    assert "✗" not in shown
    assert not password or password not in shown
    named = [
        shlex.split(line)[2:] for line in shown.splitlines() if "  polaris-spark " in line and store in line
    ]
    assert [words[0] for words in named] == ["log", "tables", "info"]
    for words in named:
        assert words[1:] == [store, *secret]
        assert run(*words)
