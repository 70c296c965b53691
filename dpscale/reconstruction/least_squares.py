"""Least squares: every residual is the inverse-variance average of its measurements, with exact standard errors."""

from __future__ import annotations

from pathlib import Path

from dpscale.reconstruction.base import BasicOptions, Estimates, Evidence, Reconstruction


def estimates(evidence: Evidence, options: BasicOptions, folder: Path) -> Estimates:
    """Return unbiased estimates of everything that was measured."""
    return evidence.least_squares()


RECONSTRUCTION = Reconstruction(
    name="least-squares", Options=BasicOptions, form="least_squares", explain=lambda options: "", estimates=estimates
)
