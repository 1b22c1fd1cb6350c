"""Expiry of the snapshots of all tables in a catalog."""
