"""Answers from estimated marginals alone: of local maximum entropy, or of GReM where it is not unbiased.

Every query over an attribute set is a sum over the cells of its estimated marginal. No standard error follows from the
noise alone, since what was not measured is guessed; so none is told unless errors were simulated (`simulated`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.errors import JobError, PlanError
from dpscale.base.names import AttributeSet
from dpscale.reconstruction.agreement import margin
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.evidence import Evidence
from dpscale.reconstruction.simulated import CONTAINS, Simulated
from dpscale.workload import Part

NO_ERRORS = (
    "No standard errors are told: what was not measured is guessed from the rest, and noise does not tell how well."
)
SIMULATED = f"Standard errors: {CONTAINS[0].lower()}{CONTAINS[1:]}"


class Model(Protocol):
    """What has estimated marginals."""

    def marginal(self, names: AttributeSet, /) -> Floats:
        """Estimated counts over the cells, an axis each in the domain's order."""


@dataclass(frozen=True, eq=False)
class Agreed:
    """A model some of whose marginals were made to agree: they, and the margins of the first that holds a set."""

    model: LowOrder
    tables: Mapping[AttributeSet, Floats]

    def marginal(self, names: AttributeSet) -> Floats:
        holder = next((target for target in self.tables if set(names) <= set(target)), None)
        return self.model.marginal(names) if holder is None else margin(self.tables[holder], holder, names)


class Modelled:
    """Estimates of what was measured and of the workload by a model.

    Parameters
    ----------
    evidence: what was measured.
    model: gives marginals.
    known: the attributes of the model.
    errors: simulated errors, where the job asks for them.
    """

    def __init__(self, evidence: Evidence, model: Model, known: Sequence[str], errors: Simulated | None = None) -> None:
        self.workload, self.noise, self.model, self.errors = evidence.workload, evidence.noise, model, errors
        self._known, self._spans = frozenset(known), evidence.spans

    def extrapolates(self, attributes: Sequence[str]) -> bool:
        """Whether the model completes what the measurements of these attributes leave open."""
        return not self._spans(self.workload.domain.ordered(attributes))

    def marginal(self, attributes: Sequence[str]) -> Floats:
        """Estimated counts over the attributes, an axis each in the order asked."""
        for name in attributes:
            if name not in self._known:
                raise PlanError("attributes", f"{name} was not measured", "attributes of the workload",
                                "add a family over it to the workload")  # fmt: skip
        ordered = self.workload.domain.ordered(attributes)
        return self.model.marginal(ordered).transpose([ordered.index(name) for name in attributes])

    def answer(self, attributes: Sequence[str], query: Any) -> tuple[float, float]:
        """Estimate and standard error (nan: none is told) of one linear query, an array over the attributes' cells."""
        weights = np.asarray(query, dtype=np.float64)
        shape = self.workload.domain.shape(attributes)
        if weights.shape != shape or not np.isfinite(weights).all():
            raise JobError("query", f"shape {weights.shape}", f"finite numbers of shape {shape}",
                           "give an axis for every attribute")  # fmt: skip
        error = math.nan if self.errors is None else self.errors.query_error(attributes, weights)
        return float((weights * self.marginal(attributes)).sum()), error

    def several(self, part: Part, sets: Sequence[AttributeSet]) -> Iterator[tuple[Floats, Floats]]:
        """The same of several sets."""
        return (self.part_answers(part, names) for names in sets)

    def part_answers(self, part: Part, attributes: AttributeSet) -> tuple[Floats, Floats]:
        """Estimates of all queries of a part over one set, and their standard errors (nan: none is told)."""
        answers = part.answers(attributes, self.marginal(attributes))
        if self.errors is None or not attributes:
            return answers, np.full(answers.shape, math.nan)
        return answers, self.errors.part_errors(part, attributes)
