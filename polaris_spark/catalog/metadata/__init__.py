"""Metadata of tables and views: stored rows, requirements and updates of commits, and the JSON that clients load.

The code performs no I/O of its own. It reads stored objects through the `ObjectReader` that the caller passes, and
returns new objects to the caller.

Begin with `rows.py`, the stored rows, and `draft.py` `TableDraft`, a table that is changed. `table_updates.py` and
`requirements.py` have the updates and requirements of commits; `view_draft.py` and `view_updates.py` are for views.
`renderer.py` returns the JSON for clients, `table_parser.py` and `view_parser.py` read that of metadata files.
"""
