"""`fsck`: a check of all rows of a store for damage."""
