"""What an AIM run released, as reconstructions take it: 1-ways cell by cell, and residuals over groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dpscale.base.arrays import Floats
from dpscale.base.each import Each, plainly
from dpscale.base.names import AttributeSet
from dpscale.mechanisms.aim.beliefs import EntropyBelief, Grem, MaximumEntropy
from dpscale.mechanisms.aim.decision import Decision
from dpscale.mechanisms.aim.graphical import observed
from dpscale.mechanisms.aim.setting import Setting
from dpscale.mechanisms.aim.state import State, absorbed, begun
from dpscale.privacy.budget import GAUSSIAN
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.junction_tree.observed import Observed
from dpscale.reconstruction.simulated import Simulated, simulated
from dpscale.workload import Workload
from dpscale.workload.residual import subsets
from dpscale.workload.residual.grem import Residuals

Taken = Sequence[tuple[Decision, Sequence[Floats]]]


@dataclass(frozen=True, eq=False)
class Adaptive:
    """All decisions with their values. `estimating`: the setting with what low-order tables are made by."""

    workload: Workload
    setting: Setting
    estimating: Setting
    taken: Taken
    noise: str = GAUSSIAN

    def least_squares(self) -> LeastSquaresEstimates:
        raise NotImplementedError("least squares of adaptive measurements is not in `reconstructions`")

    def residuals(self) -> Residuals:
        """As GReM has them, 1-ways among them (those of a run over groups of cells are over groups)."""
        return self._state(replace(self.setting, beliefs=Grem())).residuals

    def spans(self, names: AttributeSet) -> bool:
        """A residual that was measured over groups of several cells is not known cell by cell."""
        return all(kept in self._by_cell for kept in subsets(names) if kept)

    @cached_property
    def _by_cell(self) -> frozenset[AttributeSet]:
        """The residuals that some round measured over all cells."""
        return frozenset(order.names for decision, _ in self.taken for order in decision.orders
                         if all(grouping.count == grouping.size for grouping in order.groups))  # fmt: skip

    def measurements(self) -> list[Observed]:
        """1-ways over cells, and residuals over groups, each averaged over the rounds."""
        state = self._state(self.estimating)
        return observed(state.counts, state.groups, state.residuals)

    def low_order(self) -> LowOrder:
        return self._belief.model

    def simulated(self, model: LowOrder, seed: int, each: Each = plainly) -> Simulated:
        belief = self._belief
        return simulated(model, belief.counts, belief.residuals, belief.candidates, belief.chains, seed=seed, each=each)

    @cached_property
    def _belief(self) -> EntropyBelief:
        state, beliefs = self._state(self.estimating), self.estimating.beliefs
        assert isinstance(beliefs, MaximumEntropy)
        return beliefs.belief(state.counts, state.groups, state.residuals, self.estimating.candidates)

    def _state(self, setting: Setting) -> State:
        """After all rounds, for its estimates only."""
        (first, values), *later = self.taken
        state = begun(setting, first, list(values), later[0][0].groups if later else None)
        for decision, values_of in later:
            state = absorbed(state, decision, list(values_of))
        return state
