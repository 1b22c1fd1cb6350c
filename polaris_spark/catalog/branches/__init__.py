"""Branches and tags of a catalog, states by name, the log, and the heads of a store.

Begin with `branches.py`, and with `states.py`, which finds the state that a text such as `dev#17` names.
`merge_base.py` finds common ancestors. `change_log.py` reads the log of a branch, and `archived_log.py` reads the log
entries that are kept of trimmed commits. `checks.py` has the checks of protected branches.
"""
