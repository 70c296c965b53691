"""Evidence of an AIM run: all decisions with their values, in the forms that reconstructions read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dpscale.base.numerics import AttributeSet, Floats, ParallelMap, serial_map
from dpscale.mechanisms.aim.continued import EarlierState, begin
from dpscale.mechanisms.aim.decision import AimDecision
from dpscale.mechanisms.aim.estimators import EntropyEstimates, EntropyEstimator, GremEstimator, observed
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.aim.state import AimState
from dpscale.privacy.accounting import GAUSSIAN
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.graphical_fit import Observed
from dpscale.reconstruction.simulated_errors import SimulatedErrors, simulate_errors
from dpscale.workload import Workload
from dpscale.workload.residual import Residuals, subsets

DecisionValues = Sequence[tuple[AimDecision, Sequence[Floats]]]


@dataclass(frozen=True, eq=False)
class AdaptiveEvidence:
    """All decisions of an adaptive release with their values, as evidence for reconstructions.

    Attributes
    ----------
    workload : Workload
    setting : Setting
    estimating : Setting
        Setting with the estimator of low-order tables.
    taken : sequence of (AimDecision, sequence of ndarray)
    earlier : EarlierState or None
        State of earlier releases that the release started from.
    noise : str
    """

    workload: Workload
    setting: Setting
    estimating: Setting
    taken: DecisionValues
    earlier: EarlierState | None = None
    noise: str = GAUSSIAN

    def least_squares(self) -> LeastSquaresEstimates:
        raise NotImplementedError("least squares is not available for adaptive measurements")

    def residuals(self) -> Residuals:
        """Return the residuals for GReM, including 1-ways; those of a run over groups of cells are over groups."""
        return self._state(replace(self.setting, estimator=GremEstimator())).residuals

    def spans(self, names: AttributeSet) -> bool:
        """Return whether every residual of a set was measured cell by cell.

        Measurements over groups of several cells do not determine a residual.
        """
        return all(residual_set in self.by_cell for residual_set in subsets(names) if residual_set)

    @cached_property
    def by_cell(self) -> frozenset[AttributeSet]:
        """Residuals that some round of any release measured over all cells."""
        measured = set[AttributeSet]()
        for decision, _ in self.taken:
            for request in decision.requests:
                if all(grouping.count == grouping.size for grouping in request.groups):
                    measured.add(request.names)
        return frozenset(measured if self.earlier is None else measured | self.earlier.by_cell)

    def measurements(self) -> list[Observed]:
        """Return 1-ways over cells, and residuals over groups, each averaged over the rounds."""
        state = self._state(self.estimating)
        return observed(state.counts, state.groups, state.residuals)

    def low_order(self) -> LowOrder:
        return self._belief.model

    def simulate_errors(self, model: LowOrder, seed: int, each: ParallelMap = serial_map) -> SimulatedErrors:
        """Return simulated errors of a released model, from fits to noise like the drawn one around its estimates."""
        belief = self._belief
        return simulate_errors(
            belief.model,
            belief.counts,
            belief.residuals,
            belief.candidates,
            belief.chains,
            seed=seed,
            each=each,
            released=model,
        )

    @cached_property
    def _belief(self) -> EntropyEstimates:
        """Local maximum entropy tables of all decisions."""
        state, estimator = self._state(self.estimating), self.estimating.estimator
        assert isinstance(estimator, EntropyEstimator)
        return estimator.fit(state.counts, state.groups, state.residuals, self.estimating.candidates)

    def state(self) -> AimState:
        """Return the state after all rounds with the estimator of low-order tables, for its estimates only."""
        return self._state(self.estimating)

    def _state(self, setting: Setting) -> AimState:
        """Return the state after all rounds with the estimator of a setting, for its estimates only.

        The groups are those of the second decision, if there is one, since they were chosen before it.
        """
        (first, values), *later = self.taken
        state = begin(setting, first, values, later[0][0].groups if later else None, self.earlier)
        for decision, values_of in later:
            state = state.updated(decision, list(values_of))
        return state
