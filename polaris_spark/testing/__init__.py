"""Test cases, fault injection and database servers, for authors of storage backends and of tests."""

import contextlib

with contextlib.suppress(ImportError):
    import pytest

    for _module in ("admin", "file", "object", "opening", "race", "reference", "scan", "session", "trouble"):
        pytest.register_assert_rewrite(f"{__name__}.{_module}_cases")  # so that a failure shows the values
