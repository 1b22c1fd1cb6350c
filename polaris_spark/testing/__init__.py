"""For those who write backends and tests: the conformance kit."""

import contextlib

with contextlib.suppress(ImportError):
    import pytest

    for _module in ("object_cases", "race_cases", "reference_cases", "scan_cases", "trouble_cases"):
        pytest.register_assert_rewrite(f"{__name__}.{_module}")  # so that a failure shows the values
