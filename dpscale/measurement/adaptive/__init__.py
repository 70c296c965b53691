"""Choosing what to measure by what was measured before: the generic loop, exact scores, and the exponential mechanism.

Between two states of a chain (`plans.planned`) a selection meets exact distances here and nowhere else. No mechanism's
name, no Dask, no files: `mechanisms`, `engine` and `stages` bring those.
"""

from dpscale.measurement.adaptive.loop import run
from dpscale.measurement.adaptive.selection import Scores, draw_chosen
from dpscale.measurement.adaptive.shard import Shard, packed

__all__ = ["Scores", "Shard", "draw_chosen", "packed", "run"]
