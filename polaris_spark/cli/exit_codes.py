"""Exit codes of commands. A command that succeeds ends with 0."""

from __future__ import annotations

PROBLEMS_FOUND = 1
"""Exit code of a command that looks for problems, and found some."""

FAILED = 2
"""Exit code of a command that failed."""

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, by the convention of shells."""
