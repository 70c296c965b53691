"""Several tables and the links between them: one job, one budget, one release.

Every private table is a run of its own under `tables/`, whose cost is part of the whole's; links are measured between
the tables as they are and drawn between the rows that were synthesised. One entry on the ledger is charged, before
anything is drawn, for all of it (`charging`); whom it protects, and by how much a unit can move each part, is `whom`'s.
"""
