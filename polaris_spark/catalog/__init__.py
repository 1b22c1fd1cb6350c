"""Catalogs and their content: namespaces, tables and views. They are stored in the indexes that a commit points to."""
