"""Procedures of materialized views: create, refresh, explain, list, drop. Each is a statement in Spark's SQL, too."""
