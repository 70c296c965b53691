"""The whole chain in one thread: what `stages` and `engine` do with tasks, files and a ledger, done plainly.

Noise and choices come from keyed streams, so the same secret and counts give the same bytes, here as on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpscale.base.arrays import Floats, Integers
from dpscale.base.names import AttributeSet
from dpscale.counting import ExactMarginal
from dpscale.measurement.adaptive.selection import Scores, draw_chosen
from dpscale.measurement.adaptive.shard import packed
from dpscale.measurement.block import measure_block
from dpscale.plans.planned import Decision, Planned
from dpscale.privacy.streams import open_stream

MarginalOf = Callable[[AttributeSet], ExactMarginal]


def run(
    planned: Planned,
    counts_of: Callable[[AttributeSet], Integers],
    secret: bytes,
    release: Mapping[str, Any] | None = None,
    rows_per_unit: int = 1,
) -> Any:
    """The last state. `counts_of`: exact counts over the cells of a set; `release`: what all records begin with."""
    head = dict(release or {})

    def exact(names: AttributeSet) -> ExactMarginal:
        return ExactMarginal(names, counts_of(names))

    first, scores = planned.first(), Scores()
    state = planned.begun(first, measured(first, exact, secret, head))
    if not planned.candidates:
        return state
    ones = set(planned.counted) - set(planned.candidates)
    shard = packed(map(exact, planned.counted), planned.counted, state.groups, state.rows, ones)
    while (selection := planned.selection(state)) is not None:
        missing = scores.missing(selection.candidates)
        scores.learn(shard.distances(state.believed(missing), missing))
        chosen = draw_chosen(selection, scores.of(selection), rows_per_unit,
                             lambda label: open_stream(secret, "selection", {**head, **label}))  # fmt: skip
        decision = planned.decided(state, selection, chosen)
        before, state = state, planned.advanced(state, decision, measured(decision, shard.marginal, secret, head))
        scores.forget(planned.touched(before, state))
    return state


def measured(decision: Decision, marginal_of: MarginalOf, secret: bytes, head: Mapping[str, Any]) -> list[Floats]:
    """The released values of a decision, as states take them."""
    return [
        order.estimate(
            measure_block(order.block, order.draw, marginal_of(order.source), secret, {**head, **order.label})
        )
        for order in decision.orders
    ]
