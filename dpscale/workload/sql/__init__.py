"""Queries in SQL: SELECT statements with GROUP BY as linear queries on the cells of a domain.

A text has several statements (`statements`). The tables and columns of each are resolved (`scope`); a condition is a
product of sets of cells (`conditions`), a group is a set of cells of each attribute that its expressions name
(`cells`), and an aggregate is a combination of linear queries or a ratio of two (`aggregates`). A `SelectQuery` is the
whole statement (`selection`); its queries are parts of a workload (`parts`), planned together with all others.
"""
