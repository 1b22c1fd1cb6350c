"""Import of tables and views from another catalog, or from a folder, by their metadata files.

Begin with `sources.py`, the interface of a source, and `importer.py`, which imports what a source lists.
`catalogs.py`, `sql.py` and `directory.py` are the sources; `open_source.py` opens one. `adoption.py` makes imported
tables own their locations.
"""
