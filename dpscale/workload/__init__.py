"""Workloads: query families and arrays of queries over attribute sets, with weights.

A workload is a list of *parts*: a product family over many attribute sets, or an explicit array of queries over one.
Nothing here loops over queries: counts, Gram matrices and errors of a family are closed forms (`families`), and the
Gram matrix of each residual subworkload is a sum of Kronecker terms (`subworkloads`; QuerySmasher, section 5).
"""

from dpscale.workload.factors import GramFactor, axis_of, root_of
from dpscale.workload.families import FAMILIES, Family
from dpscale.workload.parts import ExplicitPart, JointPart, Part, ProductPart, counts_of
from dpscale.workload.subworkloads import Subworkload, Subworkloads, decompose
from dpscale.workload.workload import NAMES, Workload

__all__ = [
    "FAMILIES",
    "NAMES",
    "ExplicitPart",
    "Family",
    "GramFactor",
    "JointPart",
    "Part",
    "ProductPart",
    "Subworkload",
    "Subworkloads",
    "Workload",
    "axis_of",
    "counts_of",
    "decompose",
    "root_of",
]
