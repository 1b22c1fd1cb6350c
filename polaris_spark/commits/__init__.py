"""The commit protocol: prepare, apply, write rows, one compare-and-swap; the log it leaves behind."""
