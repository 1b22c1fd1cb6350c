"""Catalogs and their content: namespaces, tables and views. They are stored in the indexes that a commit points to.

Begin with `rows.py`, the rows and indexes of a catalog, and `catalogs/catalog.py`, the object through which handlers
read and change a branch. The packages, from those that use others to those that use none:

- `imports`: tables and views of other catalogs, and of folders
- `drops`: dropped tables and views, and the deletion of their files
- `merges`: merges, reverts, cherry-picks and transactions
- `branches`: branches, tags, states by name, and the log
- `catalogs`: the catalogs of a realm
- `materialized`: materialized views
- `tables`: changes of tables and views
- `entities`: what namespaces, tables and views have in common
- `manifests`: Iceberg's Avro files
- `files`: files and folders outside of the database
- `metadata`: Iceberg metadata of tables and views, without I/O

`engine.py` is the interface of the engines that work on many items.
"""
