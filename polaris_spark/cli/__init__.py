"""The command line: `polaris-spark`."""

from __future__ import annotations

import sys

from polaris_spark.cli.exit_codes import INTERRUPTED


def main() -> None:
    """Run the command that the arguments of this process (`sys.argv`) name."""
    try:
        from polaris_spark.cli import app  # takes seconds; handle Ctrl-C in this time, too
    except KeyboardInterrupt:
        print("polaris-spark: interrupted; run it again", file=sys.stderr)
        sys.exit(INTERRUPTED)
    app.main()
