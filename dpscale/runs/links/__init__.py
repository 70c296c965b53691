"""Jobs of several tables and the links between them: one job, one budget, one release.

Every private table is a run under `tables/` whose cost is part of the total. Links are measured between the input
tables and drawn between the synthetic rows. One ledger entry is charged for everything before the first draw
(`budget`); `privacy_unit` defines the neighbouring relation and the sensitivity of each component.
"""
