"""The commit protocol (prepare, apply, write rows, one compare-and-swap) and the log of commits."""
