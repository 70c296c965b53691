"""Reconstructions: post-processing of measurements to estimates; free, repeatable, without access to records.

Every measurement contains information on residuals. Their inverse-variance averages are the best linear unbiased
estimates, and every marginal or query is a sum over its residuals, with variances that add (QuerySmasher, section 7;
GReM-MLE). `RECONSTRUCTIONS` maps the names of the job file to modules, which are imported at first use.
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


def reconstructions_for(forms: Sequence[str]) -> list[str]:
    """Return the names of the reconstructions that take one of these forms of evidence, in the order of the forms."""
    named = {name: reconstruction(name).form for name in RECONSTRUCTIONS}
    return [name for form in forms for name, own in named.items() if own == form]


def reconstruction(name: str) -> Any:
    """Return the `Reconstruction` with this name."""
    return import_module(RECONSTRUCTIONS[name]).RECONSTRUCTION
