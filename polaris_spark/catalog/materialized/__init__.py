"""Materialized views: their creation, sources, freshness, lineage and time travel.

Begin with `view_sources.py`, the tables and views that a query reads, and `view_freshness.py`, whether the stored
rows are the result of the query now. `view_queries.py` and `sql_tokens.py` read Spark SQL text; `query_pinning.py`
pins a query to one commit. How a materialized view is stored is in `entities/materialized_views.py`. The jobs are in
`jobs/materialized_views/`.
"""
