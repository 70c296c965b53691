"""Exact marginal counts of encoded records, for many attribute sets in one pass.

The counts are private. The repr of `ExactMarginal` hides them.
"""

from dpscale.counting.count import ExactMarginal, count_marginals

__all__ = ["ExactMarginal", "count_marginals"]
