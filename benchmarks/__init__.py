"""Benchmarks: `python -m benchmarks` compares this catalog with its peers on this machine.

Every figure is a median over rounds in which both sides take turns. The ratio is the result that matters.
"""
