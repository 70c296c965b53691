"""GReM (AIM+GReM, algorithm 3; Mullins et al., 2024): sums of residuals, uniform where nothing was measured.

GReM-MLE is the estimate that AIM+GReM uses between rounds. With `non_negative` its marginals have no negative cell
(GReM-LNN): the residuals nearest in the metric of their noise whose sums over the requested sets are non-negative.
"""

from __future__ import annotations

from pathlib import Path

from dpscale.base.numerics import AttributeSet, ParallelMap, one_thread
from dpscale.base.settings import setting
from dpscale.reconstruction.base import BasicOptions, Estimates, Evidence, Reconstruction
from dpscale.reconstruction.model_answers import NO_ERRORS, RESIDUALS, ModelEstimates, read_residuals, write_residuals
from dpscale.workload.residual.grem import non_negative


class Options(BasicOptions):
    """Options of GReM."""

    non_negative: bool = setting(
        False, "true or false", "true: no negative estimated cell in requested sets (GReM-LNN)"
    )


def prepare(evidence: Evidence, options: Options, folder: Path, release: str, each: ParallelMap) -> None:
    """Compute non-negative residuals once, since they need an optimization, for the tasks that answer from them."""
    if options.non_negative and not (folder / RESIDUALS).exists():
        with one_thread():
            write_residuals(folder / RESIDUALS, non_negative(evidence.residuals(), _requested_sets(evidence)))


def estimates(evidence: Evidence, options: Options, folder: Path) -> Estimates:
    """Return estimates, without errors, of every set that was measured or lies inside a measured one."""
    residuals = evidence.residuals()
    if options.non_negative:
        stored = (folder / RESIDUALS).exists()
        residuals = read_residuals(folder / RESIDUALS) if stored else non_negative(residuals, _requested_sets(evidence))
    return ModelEstimates(evidence, residuals, tuple(residuals.sizes))


def _requested_sets(evidence: Evidence) -> list[AttributeSet]:
    return [names for names in evidence.workload.sets if names]


def explain(options: Options) -> str:
    """Return the explanation of these estimates for readers."""
    return f"Estimates are from GReM: residuals that were not measured are uniform. {NO_ERRORS}"


RECONSTRUCTION = Reconstruction("grem", Options, "residuals", explain, estimates, prepare=prepare)
