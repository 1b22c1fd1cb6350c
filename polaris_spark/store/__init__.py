"""The rows of a backend as typed values: immutable objects, read through a cache, and references, which are named rows
that change by compare-and-swap."""
