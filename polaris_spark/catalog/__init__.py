"""Catalogs of a realm: namespaces, tables and views, held in the indexes of a reference's commits."""
