"""Operations on whole states of a catalog: comparison, merges, reverts, cherry-picks, transactions and staging areas.

Begin with `merges.py`, the operations, and `state_merge.py` `MergeStates`, the change that all of them commit.
`differences.py` compares two states; `entity_merge.py` decides for each entity, and `merge_steps.py` carries it out.
`table_merge.py` and `snapshot_merge.py` merge the content of a table. `transactions.py` is a copy of a branch that is
merged at its commit. docs/concepts/merges.md shows the way of a merge.
"""
