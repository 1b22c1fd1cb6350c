"""The commands `polaris-spark bootstrap` and `access`, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import polaris_spark

GIVEN = "admin:0123456789abcdef"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    program = "from polaris_spark.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/catalog.db"


def test_bootstrap_creates_the_realm_and_prints_credentials_once(store: str, tmp_path: Path) -> None:
    first = run("bootstrap", store, "--json")
    assert first.returncode == 0, first.stderr
    made = json.loads(first.stdout)
    again = json.loads(run("bootstrap", store, "--json").stdout)
    assert again == {**made, "client_secret": None, "was_on": True}
    credential = f"{made['client_id']}:{made['client_secret']}"
    with polaris_spark.connect(store=store, warehouse=str(tmp_path / "w"), credential=credential) as session:
        assert session.principal == "root"


def test_bootstrap_takes_credentials_from_the_environment(store: str) -> None:
    name = "POLARIS_SPARK_BOOTSTRAP_CREDENTIALS"
    done = run("bootstrap", store, "--principal", "ann", **{name: GIVEN})
    assert done.returncode == 0
    assert "0123456789abcdef" not in done.stdout + done.stderr
    short = run("bootstrap", store, "--principal", "ann", **{name: "admin:short"})
    assert short.returncode != 0
    assert "at least 16" in short.stderr
    assert "admin:short" not in short.stderr


def test_commands_need_the_credentials_of_a_principal(store: str, tmp_path: Path) -> None:
    run("bootstrap", store, POLARIS_SPARK_BOOTSTRAP_CREDENTIALS=GIVEN)
    polaris_spark.connect(store=store, warehouse=str(tmp_path / "w"), credential=GIVEN).close()
    refused = run("access", "show-roles", store)
    assert refused.returncode != 0
    assert "'credential'" in refused.stderr
    listed = run("access", "show-roles", store, "--json", POLARIS_SPARK_CREDENTIAL=GIVEN)
    assert [row["role"] for row in json.loads(listed.stdout)] == ["service_admin"]


def test_a_document_is_shown_before_it_is_applied(store: str, tmp_path: Path) -> None:
    run("bootstrap", store, POLARIS_SPARK_BOOTSTRAP_CREDENTIALS=GIVEN)
    polaris_spark.connect(store=store, warehouse=str(tmp_path / "w"), credential=GIVEN).close()
    file = tmp_path / "access.yaml"
    file.write_text("principal-roles:\n  readers: {}\n")
    for arguments in (("--dry-run",), ()):
        done = run("access", "apply", store, str(file), *arguments, POLARIS_SPARK_CREDENTIAL=GIVEN)
        assert done.stdout == "create principal role 'readers'\n", done.stderr
    done = run("access", "apply", store, str(file), POLARIS_SPARK_CREDENTIAL=GIVEN)
    assert done.stdout == "nothing to change\n"
    printed = run("access", "export", store, POLARIS_SPARK_CREDENTIAL=GIVEN).stdout
    assert "readers: {}" in printed
    assert "0123456789abcdef" not in printed
