"""`fsck`: whether a store is sound, row by row."""
