"""`polaris-spark report`: one self-contained HTML page with charts of a catalog.

| module | content |
| --- | --- |
| `history` | commits, changes and the time that changes waited, from a branch's log |
| `lake` | storage, records and snapshots, from the tables of the branch's head |
| `rows` | objects of the realm by type and age, and which of them no reference needs |
| `plots` | drawings of these figures |
| `page` | the page |
"""
