"""Expiry of snapshots over a whole catalog."""
