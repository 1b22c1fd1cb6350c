"""Changes of tables and views: creating, committing, renaming, dropping and registering them.

Begin with `table_changes.py` `CommitTable`, which applies a commit of a table; it merges requests by
`schema_merge.py` and `append_rebase.py`. `contents.py` finds and stores the content of tables and views,
`view_changes.py` has the changes of views. `metadata_files.py` reads metadata files, `metadata_export.py` writes
them.
"""
