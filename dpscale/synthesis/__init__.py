"""Synthetic rows from estimates: a table of any length whose low-order counts are those of the released tables.

`learn` runs once, on the driver; `draw` produces a part of the table in each task; `cells` refines groups to cells and
`decode` returns values. This is post-processing: everything follows from the release and from random streams with
public keys, so the rows are reproducible by anyone with the release.
"""
