"""Estimates to rows: a table of any length whose low-order counts are those of the released tables.

`learn` is made once, on the driver; `draw` makes a part of the table, a task each; `cells` spreads groups over cells
and `decode` gives values. Post-processing: everything here follows from what was released and from streams whose keys
are public, so anyone with the release can draw the same rows.
"""
