"""What namespaces, tables and views have in common, and the changes of namespaces.

Begin with `entities.py`: the base classes of all changes, and finding entities by name. `properties.py` says which
properties apply to a change. `materialized_views.py` and `refresh_records.py` describe how a materialized view is
stored, as a view and a storage table. Changes to tables and views must take this into account.
"""
