"""A reconstruction: least squares with negative values replaced by zero, without standard errors."""

import numpy as np

from dpscale.reconstruction.base import BasicOptions, Reconstruction
from dpscale.reconstruction.model_answers import ModelEstimates


class ClippedMarginals:
    """Marginals of least squares, clipped at zero."""

    def __init__(self, estimates):
        self.estimates = estimates

    def marginal(self, names):
        return np.maximum(self.estimates.marginal(names), 0)


def estimates(evidence, options, folder):
    cut = ClippedMarginals(evidence.least_squares())
    return ModelEstimates(evidence, cut, evidence.workload.domain.names)


RECONSTRUCTION = Reconstruction(
    "cut-at-zero", BasicOptions, "least_squares", lambda options: "Estimates are cut at zero.", estimates
)
