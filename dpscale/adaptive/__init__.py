"""Mechanisms that choose what to measure by what was measured before: AIM and its kin.

A run is a chain of states (`state`), each a function of released values; between two of them a `Selection` meets exact
scores in the exponential mechanism, what follows from it is a `Decision`, and its `Order`s meet exact counts and noise.
No Dask, no files: `engine` and `jobs` bring those.
"""

from dpscale.adaptive.decision import Decision
from dpscale.adaptive.loop import run
from dpscale.adaptive.orders import Order
from dpscale.adaptive.select import Scores, Selection, draw_chosen
from dpscale.adaptive.setting import Options, Setting
from dpscale.adaptive.shard import Shard, packed
from dpscale.adaptive.state import (
    Round,
    State,
    absorbed,
    advanced,
    begun,
    decided,
    first_decision,
    next_selection,
    touched,
)

__all__ = [
    "Decision",
    "Options",
    "Order",
    "Round",
    "Scores",
    "Selection",
    "Setting",
    "Shard",
    "State",
    "absorbed",
    "advanced",
    "begun",
    "decided",
    "draw_chosen",
    "first_decision",
    "next_selection",
    "packed",
    "run",
    "touched",
]
