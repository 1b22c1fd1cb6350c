"""Operations on whole states of a catalog: comparison, merges, reverts, cherry-picks, transactions and staging areas.

Begin with `merges.py`, the operations, and `state_merge.py` `MergeStates`, the change that all of them commit.
`differences.py` compares two states. `entity_merge.py` decides what to change in each entity, and `merge_steps.py`
makes these changes. `table_merge.py` and `snapshot_merge.py` merge the content of a table. A transaction
(`transactions.py`) works on a copy of a branch, and its commit merges the copy into the branch. docs/concepts/merges.md
shows the steps of a merge.
"""
