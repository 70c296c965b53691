"""The whole loop in one thread: what `engine` does with tasks, files and a ledger, done plainly.

Noise and choices come from keyed streams, so the same secret and counts give the same bytes, here as on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.adaptive.decision import Decision
from dpscale.adaptive.select import Scores, draw_chosen
from dpscale.adaptive.setting import Names, Setting
from dpscale.adaptive.shard import packed
from dpscale.adaptive.state import State, advanced, begun, decided, first_decision, next_selection, touched
from dpscale.privacy.streams import open_stream
from dpscale.tables import ExactMarginal

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def run(
    setting: Setting, counts_of: Callable[[Names], Counts], secret: bytes, release: Mapping[str, Any] | None = None
) -> State:
    """The last state. `counts_of`: exact counts over the cells of a set; `release`: what all records begin with."""
    head = dict(release or {})

    def measured(decision: Decision) -> list[Array]:
        return [order.measure(counts_of(order.names), secret, {**head, **order.record()}) for order in decision.orders]

    decision = first_decision(setting)
    state, scores = begun(setting, decision, measured(decision)), Scores()
    shard = packed(_marginals(setting, counts_of), setting.candidates, state.groups, state.rows)
    while not state.done:
        selection = next_selection(state)
        missing = scores.missing(selection.candidates)
        scores.learn(shard.distances(state.believed(missing), missing))
        own = scores.of(selection)
        chosen = draw_chosen(selection, own, lambda record: open_stream(secret, "selection", {**head, **record}))
        decision = decided(state, selection, chosen)
        before, state = state, advanced(state, decision, measured(decision))
        scores.forget(touched(before, state))
    return state


def _marginals(setting: Setting, counts_of: Callable[[Names], Counts]) -> Iterator[ExactMarginal]:
    for names in setting.candidates:
        yield ExactMarginal(names, counts_of(names))
