"""`polaris-spark realm`: the output of exports and imports, and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.clock import SystemClock
from polaris_spark.maintenance.realm_file import layout
from polaris_spark.system.features import ALL_FEATURES
from polaris_spark.system.realms import REALM_FORMAT, Realms, RealmState
from tests.cli.catalogs import make_catalog, run
from tests.maintenance.realm_files import connected


@pytest.fixture
def file(store: str, tmp_path: Path) -> str:
    """A realm file of the store."""
    path = str(tmp_path / "default.realm")
    assert run("realm", "export", store, path).code == 0
    return path


@pytest.fixture
def other(tmp_path: Path) -> str:
    """The URI of a store that does not exist yet."""
    return f"sqlite://{tmp_path}/other.db"


def refused(*arguments: str) -> str:
    """What a command says that refuses its arguments, in one line."""
    answer = run("realm", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    return answer.err


def test_an_export_and_an_import_report_their_counts(store: str, other: str, tmp_path: Path) -> None:
    path = str(tmp_path / "r.realm")
    done = run("realm", "export", store, path, "--json").json
    assert done["file"] == path
    assert (done["realm"], done["attempts"], done["references"]) == ("default", 1, 3)
    assert done["bytes"] == Path(path).stat().st_size
    made = run("realm", "import", other, path, "--create", "--json").json
    assert {name: made[name] for name in ("realm", "state", "references", "objects", "rows")} == {
        "realm": "default",
        "state": "ACTIVE",
        **{name: done[name] for name in ("references", "objects", "rows")},
    }
    assert run("tables", other).out == run("tables", store).out
    assert run("fsck", other).code == 0
    assert run("heads", other).code == 0
    again = run("realm", "import", other, path, "--realm", "second")
    assert again.code == 0
    assert "realm second is ACTIVE, with 3 references" in again.out
    assert [(one["name"], one["state"]) for one in run("realm", "list", other, "--json").json] == [
        ("default", "ACTIVE"),
        ("second", "ACTIVE"),
    ]


def test_the_store_may_come_from_the_environment(store: str, tmp_path: Path) -> None:
    path = str(tmp_path / "r.realm")
    assert run("realm", "export", path, POLARIS_SPARK_STORE=store).code == 0
    assert Path(path).exists()


def test_an_existing_file_is_replaced_only_if_asked(store: str, file: str) -> None:
    before = Path(file).read_bytes()
    assert "already exists: choose another name, or give --overwrite" in refused("export", store, file)
    assert Path(file).read_bytes() == before
    assert run("realm", "export", store, file, "--overwrite").code == 0
    assert Path(file).read_bytes() != before


def test_files_that_cannot_be_used(store: str, file: str, other: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.realm")
    assert f"cannot read '{missing}': No such file" in refused("import", store, missing)
    assert "Is a directory" in refused("import", store, str(tmp_path))
    text = tmp_path / "text"
    text.write_text("no realm")
    assert "is not a realm file" in refused("import", store, str(text))
    torn = tmp_path / "torn.realm"
    torn.write_bytes(Path(file).read_bytes()[:-7])
    assert f"'{torn}' is incomplete" in refused("import", other, str(torn), "--create")
    assert not Path(other.removeprefix("sqlite://")).exists()
    assert "No such file or directory" in refused("export", store, str(tmp_path / "no" / "r.realm"))


def test_stores_and_realms_that_cannot_be_used(
    store: str, file: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = str(tmp_path / "new.realm")
    assert "does not contain a store" in refused("export", other, new)
    assert "does not contain a store" in (said := refused("import", other, file))
    assert "--create creates one here" in said
    assert "exists only in the process" in refused("import", "memory:x", file, "--create")
    assert "there is no realm 'nowhere'" in (said := refused("export", store, new, "--realm", "nowhere"))
    assert "it has: 'default'" in said
    assert "which is ACTIVE: choose another name" in refused("import", store, file)
    assert "realm name is empty" in refused("import", store, file, "--realm", "")
    assert "which is reserved" in refused("import", store, file, "--realm", "::system::")
    assert "which is reserved" in refused("export", store, new, "--realm", "::system::")
    with monkeypatch.context() as patch:
        patch.setattr(layout, "FORMAT", 0)
        assert "use a newer release" in refused("import", store, file)
    assert not Path(new).exists()


@pytest.mark.parametrize("state", [RealmState.LOADING, RealmState.PURGING])
def test_a_realm_that_is_neither_active_nor_inactive_is_not_exported(
    state: RealmState, tmp_path: Path
) -> None:
    store = make_catalog(tmp_path)
    connection = connected(store)
    try:
        realms = Realms(connection.backend, SystemClock())
        realms.create_for_loading("other", connection.ids, revisions={})
        realms.move("other", state)
    finally:
        connection.close()
    said = refused("export", store, str(tmp_path / "r.realm"), "--realm", "other")
    assert f"realm 'other' is {state.value}; only a realm that is ACTIVE or INACTIVE can be exported" in said
    if state is RealmState.LOADING:
        assert "import the same file again" in run("realm", "reactivate", store, "other").err


def test_a_realm_is_described_with_its_format_and_features(tmp_path: Path) -> None:
    store = make_catalog(tmp_path)
    described = run("realm", "describe", store, "default", "--json").json
    assert described["format"] == REALM_FORMAT
    assert described["features"] == dict(ALL_FEATURES) != {}
    shown = run("realm", "describe", store, "default", COLUMNS="200").out
    assert all(name in shown for name in ALL_FEATURES)
