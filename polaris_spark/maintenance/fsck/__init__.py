"""`fsck`: checks all rows of a store for damage."""
