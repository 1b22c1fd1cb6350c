"""Checks in Python, from installed packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.catalog.imports.directory import DirectoryTree
from polaris_spark.errors import CheckFailedError
from polaris_spark.jobs.registry import call
from tests.catalog.imports.support import run, table_in
from tests.rest.client import Client, table
from tests.rest.conftest import OpenBranch


def python_check(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, name: str = "rule") -> None:
    """Install a package with a Python check."""
    installed = folder / f"{name}-0.1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text(f"[polaris_spark.checks]\n{name} = check_{name}:check\n")
    (folder / f"check_{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(folder))


def test_a_python_check_sees_the_diff_and_the_merged_catalog(
    main: Client, open_branch: OpenBranch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_branch("dev").ok("DELETE", table("t"))
    body = """
    import json

    def check(merged):
        status, _, body = merged.session.request("GET", "v1/namespaces/db/tables")
        assert status == 200
        names = [one["name"] for one in json.loads(body)["identifiers"]]
        changed = [(one.name, one.change) for one in merged.diff]
        raise ValueError(f"{merged.branch} {merged.label} {names} {changed}")
    """
    python_check(tmp_path / "site", monkeypatch, "\n".join(line[4:] for line in body.splitlines()))
    assert call(main.session, "show_checks")[0][1:] == ("rule", "python", "check_rule:check")
    said = r"check 'rule' does not hold: main merge dev \['new'\] \[\('db.new', 'added'\), \('db.t', 'removed'\)\]"
    with pytest.raises(CheckFailedError, match=said):
        call(main.session, "merge", source="dev")
    assert main.names("db") == ["t"]
    rows = call(main.session, "merge", source="dev", dry_run=True)
    assert rows[-1][:3] == ("check", "rule", "failed")
    call(main.session, "unprotect_branch", name="main")
    call(main.session, "merge", source="dev")
    assert main.names("db") == ["new"]


def test_a_python_check_that_closes_its_session_closes_no_other(
    main: Client, open_branch: OpenBranch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_branch("dev").create("made")
    python_check(
        tmp_path / "site", monkeypatch, "def check(merged):\n    with merged.session: pass", "closing"
    )
    call(main.session, "merge", source="dev")
    assert "made" in main.names("db")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def other(merged): pass", "has no attribute 'check'"),
        ("raise OSError('no rules here')", "no rules here"),
        ("def check(merged): raise ValueError", "ValueError"),
        ("def check(): pass", "takes 0 positional arguments"),
        (
            "def check(merged): merged.session.set_catalog_properties({'gc.enabled': 'false'})",
            "cannot be changed",
        ),
        (
            "def check(merged):\n"
            "    status, _, text = merged.session.request('DELETE', 'v1/namespaces/db/tables/t')\n"
            "    assert status == 200, text",
            "cannot be changed",
        ),
        (
            "def check(merged):\n"
            "    path, other = 'v1/namespaces/db/tables/new', {'Polaris-State': 'dev'}\n"
            "    status, _, text = merged.session.request('DELETE', path, headers=other)\n"
            "    assert status == 204, text",
            "open another session to read 'dev'",
        ),
    ],
)
def test_a_python_check_that_fails_in_any_way_refuses_the_merge(
    main: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    name = f"rule{abs(hash(body))}"
    python_check(tmp_path / "site", monkeypatch, body, name)
    with pytest.raises(CheckFailedError, match=said):
        call(main.session, "merge", source="dev")
    assert main.names("db") == ["t"]


def test_a_python_check_must_load_an_imported_table_before_the_merge(
    main: Client, open_branch: OpenBranch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, dev = tmp_path / "imported", open_branch("dev")
    table_in(root, "db", "lazy")
    run(dev, DirectoryTree(str(root), {}), lazy=True)
    body = """
def check(merged):
    status, _, text = merged.session.request("GET", "v1/namespaces/db/tables/lazy")
    assert status == 200, text
"""
    python_check(tmp_path / "site", monkeypatch, body, "reading")
    with pytest.raises(
        CheckFailedError, match=r"metadata had not been loaded.* call load_imported on the branch"
    ):
        call(main.session, "merge", source="dev")
    call(dev.session, "load_imported")
    call(main.session, "merge", source="dev")
    assert main.names("db") == ["lazy", "new", "t"]


def test_a_python_check_that_returns_lets_the_merge_pass(
    main: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_check(tmp_path / "site", monkeypatch, "def check(merged): return False", "lenient")
    assert [row[1] for row in call(main.session, "merge", source="dev")] == ["db.new"]
