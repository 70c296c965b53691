"""Exact marginal counts of encoded records, one pass for many attribute sets.

The counts are private. `ExactMarginal` hides its numbers from every repr.
"""

from dpscale.counting.count import ExactMarginal, count_marginals

__all__ = ["ExactMarginal", "count_marginals"]
