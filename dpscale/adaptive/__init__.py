"""Mechanisms that choose what to measure by what was measured before: AIM and its kin.

A run is a chain of states (`state`), each a function of released values; between two of them a `Selection` meets exact
scores in the exponential mechanism and `Order`s meet exact counts and noise. No Dask, no files: `engine` brings those.
"""

from dpscale.adaptive.loop import run
from dpscale.adaptive.orders import Order
from dpscale.adaptive.select import Scorer, Selection, draw_chosen
from dpscale.adaptive.setting import Options, Setting
from dpscale.adaptive.state import Round, State, advanced, begun, first_orders, next_orders, next_selection

__all__ = [
    "Options",
    "Order",
    "Round",
    "Scorer",
    "Selection",
    "Setting",
    "State",
    "advanced",
    "begun",
    "draw_chosen",
    "first_orders",
    "next_orders",
    "next_selection",
    "run",
]
