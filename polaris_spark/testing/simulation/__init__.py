"""Deterministic simulation of many processes on one catalog: a seed is a run, and replays it exactly."""

from polaris_spark.testing.simulation.run import Verdict, simulate

__all__ = ["Verdict", "simulate"]
