"""Tests of schedules, tasks, workers, the history of runs, and policies."""
