"""A family: sums of a number of neighbouring cells, at every place of the axis."""

import numpy as np

from dpscale.base.settings import setting
from dpscale.workload.family import FIRST, LAST, Family


class Window(Family):
    """Sums of `width` neighbouring cells, or of all cells if there are fewer."""

    name = "window"
    ends = (FIRST, LAST)
    has_intervals = True

    width: int = setting(3, "a whole number, 1 or more", "number of cells of a window", ge=1)

    def count(self, size):
        return max(size - self.width + 1, 1)

    def answers(self, values, axis):
        running = np.insert(np.cumsum(values, axis), 0, 0, axis)
        low, high = self.intervals(values.shape[axis])
        return running.take(high, axis) - running.take(low, axis)

    def bounds(self, size):
        low, high = self.intervals(size)
        return low, high - 1

    def intervals(self, size):
        low = np.arange(self.count(size))
        return low, np.minimum(low + self.width, size)


FAMILY = Window()
