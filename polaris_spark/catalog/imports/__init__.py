"""Import of tables and views from another catalog, or from a directory tree, by their metadata files."""
