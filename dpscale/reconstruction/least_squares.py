"""Least squares: every residual the inverse-variance average of what tells of it, with exact standard errors."""

from __future__ import annotations

from pathlib import Path

from dpscale.reconstruction.base import Estimates, Evidence, Plain, Reconstruction


def estimates(evidence: Evidence, options: Plain, folder: Path) -> Estimates:
    """Unbiased estimates of all that was measured."""
    return evidence.least_squares()


RECONSTRUCTION = Reconstruction("least-squares", Plain, "least_squares", lambda options: "", estimates)
