"""Workloads: query families and arrays of queries over attribute sets, with weights.

A workload is a list of *parts*: a product family over many attribute sets, or an explicit array of queries over one.
Nothing here loops over queries: counts, Gram matrices and errors of a family are closed forms (`one_way`), and the
Gram matrix of each residual subworkload is a sum of Kronecker terms (`subworkloads`; QuerySmasher, section 5).
"""

from dpscale.workload.factors import AnyGram, GramFactor, axis_of, root_of
from dpscale.workload.families import (
    CIRCULAR,
    FAMILIES,
    MARGINAL,
    PREFIX,
    RANGE,
    family_distribution,
    family_named,
    family_names,
    one_way_family,
)
from dpscale.workload.family import End, Family, JointFamily, QueryFamily
from dpscale.workload.listed import TOTAL, ExplicitPart
from dpscale.workload.parts import RECORDS, JointPart, ProductPart, WorkloadPart, part_of
from dpscale.workload.subworkloads import Subworkload, Subworkloads, decompose
from dpscale.workload.workload import MOST_SETS, Workload

__all__ = [
    "CIRCULAR",
    "FAMILIES",
    "MARGINAL",
    "MOST_SETS",
    "PREFIX",
    "RANGE",
    "RECORDS",
    "TOTAL",
    "AnyGram",
    "End",
    "ExplicitPart",
    "Family",
    "GramFactor",
    "JointFamily",
    "JointPart",
    "ProductPart",
    "QueryFamily",
    "Subworkload",
    "Subworkloads",
    "Workload",
    "WorkloadPart",
    "axis_of",
    "decompose",
    "family_distribution",
    "family_named",
    "family_names",
    "one_way_family",
    "part_of",
    "root_of",
]
