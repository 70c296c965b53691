"""What is asked: query families and arrays of queries over attribute sets, with weights.

A workload is a list of *parts*: a product family over many attribute sets, or an explicit array of queries over one.
Nothing here loops over queries: counts, Gram matrices and errors of a family are closed forms (`families`), and the
Gram of each residual subworkload is a sum of Kronecker terms (`subworkloads`; QuerySmasher, section 5).
"""

from dpscale.workload.families import FAMILIES, Family
from dpscale.workload.parts import ExplicitPart, Part, ProductPart
from dpscale.workload.subworkloads import Subworkload, decompose
from dpscale.workload.workload import Workload

__all__ = ["FAMILIES", "ExplicitPart", "Family", "Part", "ProductPart", "Subworkload", "Workload", "decompose"]
