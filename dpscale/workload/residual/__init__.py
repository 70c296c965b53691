"""Residual decomposition of queries and marginals, axis by axis on arrays.

A query on the attributes A splits into one piece for every A' ⊆ A: average the axes outside A', centre the axes of A'
(QuerySmasher, section 4; ResidualPlanner, section 4). Pieces of different A' depend on orthogonal parts of the data,
and
    query · marginal(A) = Σ over A' of piece(A') · marginal(A').
The transpose maps a marginal to its residuals: sum the axes outside A', centre the others. The inverse smears the
residuals and adds them. Every function takes an array and axes and never builds a Kronecker product.
"""

from dpscale.workload.residual.axes import (
    Profiles,
    Weights,
    center,
    kron,
    piece,
    profile_of,
    residual_of,
    smear,
    subsets,
)

__all__ = ["Profiles", "Weights", "center", "kron", "piece", "profile_of", "residual_of", "smear", "subsets"]
