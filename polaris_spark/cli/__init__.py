"""The command line: `polaris-spark`."""

from polaris_spark.cli.app import app, main

__all__ = ["app", "main"]
