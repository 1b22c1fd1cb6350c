"""Dropped tables and views: which are kept, restoring them, and deleting their files.

Begin with `drops.py`, which finds the drops of a history. `undrop.py` restores, `purge.py` deletes files, and
`overlapping_tables.py` finds the tables that may still need them.
"""
