"""A protected branch."""

from __future__ import annotations

import pytest

from polaris_spark.jobs.registry import call
from tests.rest.appends import appendable
from tests.rest.client import Client
from tests.rest.conftest import OpenBranch


@pytest.fixture
def main(open_branch: OpenBranch) -> Client:
    """The protected branch `main` with the table `db.t`. The branch `dev` was created from it, and has the table
    `db.new`."""
    client = open_branch()
    client.namespace("db")
    appendable(client)
    call(client.session, "create_branch", name="dev")
    call(client.session, "protect_branch", name="main")
    open_branch("dev").create("new")
    return client
