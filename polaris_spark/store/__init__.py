"""Rows as typed values: objects with their cache, and references."""
