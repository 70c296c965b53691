"""Measurements → estimates: post-processing, free and repeatable; it never sees a record or an exact count.

Every measurement tells of residuals; their inverse-variance averages are the best linear unbiased estimates, and every
marginal or query is a sum over its residuals, with variances that add (QuerySmasher, section 7; GReM-MLE).
"""

from dpscale.reconstruct.estimates import Estimates

__all__ = ["Estimates"]
