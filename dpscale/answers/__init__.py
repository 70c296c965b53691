"""Answers with names: labelled tables, totals, quantiles, means. Post-processing, free and repeatable."""
