"""Metadata of tables and views: stored rows, requirements and updates of commits, and the JSON that clients load.

The code performs no I/O of its own. It reads stored objects through the `ObjectReader` that the caller passes, and
returns new objects to the caller.
"""
