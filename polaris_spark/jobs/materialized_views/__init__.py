"""Procedures of materialized views: create, refresh, explain, list, change and drop them."""
