"""`polaris-spark report`: one HTML page of pictures about a catalog, which needs nothing but itself.

| module | what |
| --- | --- |
| `history` | commits, changes and who waited for whom, from a branch's log |
| `lake` | storage, records and snapshots, from the tables of its head |
| `rows` | objects of the realm by type and age, and which of them nothing needs |
| `plots` | drawings of these figures |
| `page` | the page |
"""
