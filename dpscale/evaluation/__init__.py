"""Comparison of synthetic rows with the data: a private report for readers with access to the data, separate from runs.

All other quality figures (`report`, `_rows.json`) are computed from the release and are public. This package reads
records, so its results are exact and private. They are written to a folder outside every run directory that only its
owner can read, and never to a terminal, a log or a run. It spends no budget, because its results are not published.
Only the statistics of keys, for the author of a job (`inputs`), are printed, with a warning.
"""

from dpscale.evaluation.comparison import compare

__all__ = ["compare"]
