"""Branches and tags of a catalog, states by name, the log, and the heads of a store.

Begin with `branches.py`, and with `states.py`, which says which state a text means. `merge_base.py` finds common
ancestors. `change_log.py` reads the log of a branch, and `archived_log.py` what is kept of trimmed commits.
`checks.py` has the checks of protected branches.
"""
