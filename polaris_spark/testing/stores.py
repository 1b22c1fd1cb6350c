"""Base class and test data of all test cases of the storage contract: a new store, rows, and names that are hard to
store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest

from polaris_spark.backends import open_backend
from polaris_spark.backends.base import MAX_NAME_BYTES, Backend, ReferenceRow, Table

MAX_ID: Final = 2**63 - 1
MAX_PART: Final = 2**31 - 1
TABLES: Final[tuple[Table, ...]] = ("objects", "references")
HOSTILE_NAMES: Final = [
    "a b",
    "a/b/../c",
    "a.b",
    "quote ' \" ` quote",
    "back\\slash",
    "'; DROP TABLE objects; --",
    "100%_$1?:x{0}",
    "new\nline\r\ttab",
    "\x00",
    "a\x00b",
    "unit\x1fseparator",
    "Grüße, 表, 🦆",
    "é",
    "e\u0301",
    "\uffff",
    "CASE",
    "case",
    " ",
    " case",
    "case ",
    "n" * MAX_NAME_BYTES,
    "ü" * (MAX_NAME_BYTES // 2),
]


def row(value: bytes = b"value") -> ReferenceRow:
    """Return a reference row with a new version token."""
    return ReferenceRow(os.urandom(16), value)


def with_options(uri: str, options: str) -> str:
    """Return a store URI with additional options. `options` has the form `name=value&...`."""
    return f"{uri}{'&' if '?' in uri else '?'}{options}"


class StoreCases:
    """Base class of test cases on a new, empty store."""

    @pytest.fixture
    def uri(self) -> str:
        """URI of a store that does not exist yet. It differs in each test."""
        raise NotImplementedError("the test class must define the fixture 'uri'")

    @pytest.fixture
    def backend(self, uri: str) -> Iterator[Backend]:
        """The backend of the store `uri`, open and set up."""
        backend = open_backend(uri)
        backend.setup()
        yield backend
        backend.close()
