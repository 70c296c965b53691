"""Evidence → estimates: post-processing, free and repeatable; it never sees a record or an exact count.

Every measurement tells of residuals; their inverse-variance averages are the best linear unbiased estimates, and every
marginal or query is a sum over its residuals, with variances that add (QuerySmasher, section 7; GReM-MLE).
The table names each reconstruction as the job file does, and its module, which is imported when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

RECONSTRUCTIONS = {
    "least-squares": "dpscale.reconstruction.least_squares",
    "grem": "dpscale.reconstruction.grem",
    "maxent": "dpscale.reconstruction.maxent",
    "graphical": "dpscale.reconstruction.graphical",
}


def taking(forms: Sequence[str]) -> list[str]:
    """The names of those that take one of some forms of evidence, in the order of the forms."""
    named = {name: reconstruction(name).form for name in RECONSTRUCTIONS}
    return [name for form in forms for name, own in named.items() if own == form]


def reconstruction(name: str) -> Any:
    """The `Reconstruction` of a name in the table."""
    return import_module(RECONSTRUCTIONS[name]).RECONSTRUCTION
