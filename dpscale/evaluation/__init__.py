"""Rows against the data themselves: a private report, for those who may see the data, and never a part of a run.

All else that tells how good a release is (`report`, `_rows.json`) is made of what was released, and is public. This
room reads records. What it makes is exact, so it goes to a folder outside every run directory that its owner alone can
read, and nothing of it to a terminal, a log or a run. It spends nothing, for nothing of it may be published.
"""

from dpscale.evaluation.comparison import compare

__all__ = ["compare"]
