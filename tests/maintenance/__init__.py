"""Tests of maintenance: what it may delete, and what it must keep."""
