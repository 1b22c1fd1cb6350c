"""Fixtures of tests with several processes that compete."""

from __future__ import annotations

import uuid

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import Backend
from tests.mailboxes import Office

from .rivals import Rivals
from .test_swaps_in_doubt import Doubtful


@pytest.fixture(params=[True, False], ids=["with transactions", "rows first, then swap"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return Doubtful(open_backend(f"memory:{uuid.uuid4()}"), transactional=request.param)  # type: ignore[return-value]


@pytest.fixture(params=["database", "messages", "messages without answers"])
def rivals(backend: Backend, request: pytest.FixtureRequest) -> Rivals:
    office = Office(answers=request.param == "messages")
    return Rivals(backend, office=None if request.param == "database" else office)
