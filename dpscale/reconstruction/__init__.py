"""Reconstructions: post-processing of measurements to estimates; free, repeatable, without access to records.

Every measurement contains information on residuals. Their inverse-variance averages are the best linear unbiased
estimates, and every marginal or query is a sum over its residuals, with variances that add (QuerySmasher, section 7;
GReM-MLE). `RECONSTRUCTIONS` maps the names of the job file to modules, which are imported at first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpscale.base.plugins import all_names, distribution_of, load

RECONSTRUCTIONS = {
    "least-squares": "dpscale.reconstruction.least_squares",
    "grem": "dpscale.reconstruction.grem",
    "maxent": "dpscale.reconstruction.maxent",
    "graphical": "dpscale.reconstruction.graphical",
}


GROUP = "dpscale.reconstructions"


def reconstruction_names() -> list[str]:
    """Return the names of all reconstructions, those of other distributions last."""
    return list(all_names(GROUP, RECONSTRUCTIONS))


def reconstructions_for(forms: Sequence[str]) -> list[str]:
    """Return the names of dpscale's reconstructions for these forms of evidence, in the order of the forms."""
    form_of = {name: reconstruction(name).form for name in RECONSTRUCTIONS}
    return [name for form in forms for name in form_of if form_of[name] == form]


def reconstruction(name: str) -> Any:
    """Return the `Reconstruction` with this name; raise JobError if it is unknown."""
    return load(GROUP, RECONSTRUCTIONS, name, "RECONSTRUCTION", "reconstruct.method")


def distribution(name: str) -> str:
    """Return name and version of the distribution that registers a reconstruction; "" for those of dpscale."""
    return distribution_of(GROUP, RECONSTRUCTIONS, name)
