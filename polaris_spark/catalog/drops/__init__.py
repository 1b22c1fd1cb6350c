"""Dropped tables and views: which are kept, restoring them, and deleting their files.

Begin with `drops.py`, which finds the drops of a history. `undrop.py` restores dropped tables and
views, and `purge.py` deletes their files. `overlapping_tables.py` finds other tables that may still need these files.
"""
