"""The view `branches`."""

from __future__ import annotations

from pathlib import Path

import pytest

from polaris_spark.errors import InputError, NotFoundError
from polaris_spark.jobs.registry import call
from tests.views.catalogs import Catalog, rows


def test_branches_are_shown_with_their_distance_from_main(tmp_path: Path) -> None:
    main = Catalog(tmp_path / "c.db")
    other = Catalog(tmp_path / "c.db", store=main.store, catalog="other")
    main.namespace("db")
    for name in ("dev", "old", "gone"):
        call(main.session, "create_branch", name=name)
    call(main.session, "drop_branch", name="gone")
    dev = Catalog(tmp_path / "c.db", store=main.store, branch="dev")
    for name in ("a", "b", "c"):
        dev.namespace(name)
    main.namespace("later")
    found = {(row["catalog"], row["branch"]): row for row in rows("branches", store=main.store)}
    parted = {name: (row["ahead"], row["behind"]) for name, row in found.items()}
    assert parted == {
        ("other", "main"): (0, 0),
        ("polaris", "main"): (0, 0),
        ("polaris", "dev"): (3, 1),
        ("polaris", "old"): (0, 1),
    }
    shown = {row[0]: row[1:] for row in call(main.session, "show_branches")}
    for name, (number, commit, time, *apart) in shown.items():
        row = found["polaris", name]
        assert (row["number"], row["commit_id"], row["committed_at"]) == (number, commit, time)
        assert [row["ahead"], row["behind"]] == apart
    assert len(rows("branches", store=main.store, catalog="other")) == 1
    with pytest.raises(NotFoundError, match="catalog 'nosuch' does not exist"):
        rows("branches", store=main.store, catalog="nosuch")
    with pytest.raises(InputError, match="view 'branches' does not support the option as-of"):
        rows("branches", store=main.store, catalog="other", as_of="0")
    for one in (main, other, dev):
        one.session.close()
