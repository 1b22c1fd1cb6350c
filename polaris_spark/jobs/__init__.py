"""Procedures: `CALL polaris.system.<name>(...)` in SQL, `call(session, name, ...)` in Python."""
