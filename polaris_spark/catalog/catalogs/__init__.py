"""The catalogs of a realm, and `Catalog`, the object through which handlers read and change one branch.

Begin with `catalog.py`. `catalogs.py` reads the catalogs of a realm, `catalog_changes.py` and `property_changes.py`
change them, and `realm_catalogs.py` does both for a principal. `references.py` has the names of the database rows
that point to the branches.
"""
