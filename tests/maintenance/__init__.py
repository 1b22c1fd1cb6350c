"""Maintenance: what may go, and what must stay."""
