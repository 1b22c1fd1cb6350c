"""Procedures, which are called by `CALL polaris.system.<name>(...)` in SQL or `call(session, name, ...)` in Python."""
