"""Import: tables and views of another catalog, or of a directory tree, by the metadata files that they have."""
