"""Answers from estimated marginals alone: of local maximum entropy, or of GReM where it is not unbiased.

Every query over an attribute set is a sum over the cells of its estimated marginal. No standard error follows from the
noise alone, since what was not measured is guessed; so none is told unless errors were simulated (`simulated`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpscale.errors import JobError, PlanError
from dpscale.workload import Part, Workload
from dpscale.workload.parts import Attributes

Array = NDArray[np.float64]
ERROR_LABEL = (
    "No standard errors are told: what was not measured is guessed from the rest, and noise does not tell how well."
)


class Model(Protocol):
    """What has estimated marginals."""

    def marginal(self, names: Sequence[str], /) -> Array:
        """Estimated counts over the cells, an axis each in the order asked."""


class Modelled:
    """Estimates of a workload by a model. `known`: the attributes that it tells of."""

    def __init__(self, workload: Workload, model: Model, known: Sequence[str], noise: str) -> None:
        self.workload, self.model, self.noise = workload, model, noise
        self._known = frozenset(known)

    def marginal(self, attributes: Sequence[str]) -> Array:
        """Estimated counts over the attributes, an axis each in the order asked."""
        for name in attributes:
            if name not in self._known:
                raise PlanError("attributes", f"{name} was not measured", "attributes of the workload",
                                "add a family over it to the workload")  # fmt: skip
        ordered = self.workload.domain.ordered(attributes)
        return self.model.marginal(ordered).transpose([ordered.index(name) for name in attributes])

    def answer(self, attributes: Sequence[str], query: Any) -> tuple[float, float]:
        """Estimate and standard error (nan: none is known) of one linear query, an array over the attributes' cells."""
        weights = np.asarray(query, dtype=np.float64)
        shape = self.workload.domain.shape(attributes)
        if weights.shape != shape or not np.isfinite(weights).all():
            raise JobError("query", f"shape {weights.shape}", f"finite numbers of shape {shape}",
                           "give an axis for every attribute")  # fmt: skip
        return float((weights * self.marginal(attributes)).sum()), math.nan

    def part_answers(self, part: Part, attributes: Attributes) -> tuple[Array, Array]:
        """Estimates of all queries of a part over one set, and their standard errors (nan: none is known)."""
        answers = part.answers(attributes, self.marginal(attributes))
        return answers, np.full(answers.shape, math.nan)
