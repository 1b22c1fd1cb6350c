"""Maintenance of realms: what may go, decided here; executors carry out what is large."""
