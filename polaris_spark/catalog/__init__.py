"""Catalogs and their content: namespaces, tables and views, which are stored in indexes of commits."""
