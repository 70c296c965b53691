"""The whole loop in one thread: what `engine` does with tasks, files and a ledger, done plainly.

Noise and choices come from keyed streams, so the same secret and counts give the same bytes, here as on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.adaptive.orders import Order
from dpscale.adaptive.select import Scorer, draw_chosen
from dpscale.adaptive.setting import Names, Setting
from dpscale.adaptive.state import State, advanced, begun, first_orders, next_orders, next_selection
from dpscale.privacy.streams import open_stream

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def run(
    setting: Setting, counts_of: Callable[[Names], Counts], secret: bytes, release: Mapping[str, Any] | None = None
) -> State:
    """The last state. `counts_of`: exact counts over the cells of a set; `release`: what all records begin with."""
    head = dict(release or {})

    def measured(order: Order) -> Array:
        return order.measure(counts_of(order.names), secret, {**head, **order.record()})

    orders = first_orders(setting)
    state, scorer = begun(setting, orders, [measured(order) for order in orders]), Scorer(counts_of)
    while not state.done:
        selection = next_selection(state)
        scores = scorer.scores(selection)
        chosen = draw_chosen(selection, scores, lambda record: open_stream(secret, "selection", {**head, **record}))
        orders = next_orders(state, selection, chosen)
        state = advanced(state, selection, chosen, orders, [measured(order) for order in orders])
    return state
