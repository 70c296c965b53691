"""A worker's preload: every measurement, and every count if asked, takes a while: a test can act between two."""

import os
import time

from dpscale.engine import counting
from dpscale.measurement import measurement

STORING = float(os.environ.get("DPSCALE_TEST_STORING", "1.0"))
DRAWN = 0.0
COUNTING = float(os.environ.get("DPSCALE_TEST_COUNTING", "0"))
write_values, count = measurement.write_values, counting.count_by


def slowly(*arguments: object) -> None:
    time.sleep(DRAWN)
    write_values(*arguments)
    time.sleep(STORING)


def counted(*arguments: object) -> object:
    time.sleep(COUNTING)
    return count(*arguments)


measurement.write_values, counting.count_by = slowly, counted
