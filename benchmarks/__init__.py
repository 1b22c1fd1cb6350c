"""Benchmarks: `python -m benchmarks` measures this catalog beside its peers on this machine.

Every figure is a median over rounds in which both sides take turns; what counts is the ratio.
"""
