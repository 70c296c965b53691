"""The in-axis algebra on arrays.

A query on the attributes A splits into one piece for every A' ⊆ A: average the axes outside A', centre the axes of A'
(QuerySmasher, section 4; ResidualPlanner, section 4). Pieces of different A' look at orthogonal parts of the data, and
    query · marginal(A) = Σ over A' of piece(A') · marginal(A').
The transpose sends a marginal to its residuals: sum the axes outside A', centre the rest; and back: smear and add.
Every function takes an array and axes, and never builds a Kronecker product.
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
